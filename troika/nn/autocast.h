// Mixed precision for forward passes: LibTorch's autocast as a guard. Parameters stay in fp32.
// Matrix products and convolutions compute in bf16 or fp16, what needs the range in fp32, and
// gradients of parameters come in fp32.
//
//   torch::Tensor loss;
//   {
//     const troika::Autocast autocast(at::kBFloat16, session.device());
//     loss = criterion(model(input), target);
//   }
//   loss.backward();
//
// bf16 needs nothing else. fp16 needs a GradScaler (parallel/data_parallel/grad_scaler.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace troika {

// Casts in this thread during its lifetime. Guards nest: each restores the state before it, and the
// last one to go drops the copies of parameters that casts have made. Destroy it in the thread that
// made it. End its scope before the backward pass, and before anything writes to parameters:
// the copies would be out of date. (DataParallel drops them after each average, GradScaler after
// each step.)
class [[nodiscard]] Autocast {
 public:
  // Casts to `dtype`, bf16 or fp16, on devices of a type. Throws UsageError for another dtype, and
  // for a device type that LibTorch has no casts for.
  Autocast(at::ScalarType dtype, at::Device device) : Autocast(dtype, device.type()) {}
  Autocast(at::ScalarType dtype, at::DeviceType device);
  // Casts on the type of device that `tensor` is on, such as a batch or a parameter.
  Autocast(at::ScalarType dtype, const at::Tensor& tensor);
  // Makes a guard without casts: an island inside another guard, for what needs its tensors'
  // precision. Tensors that come from outside keep their dtype, so cast those that are 16-bit.
  static Autocast disabled(at::DeviceType device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  struct State {
    bool enabled;
    at::ScalarType dtype;
    friend bool operator==(const State&, const State&) = default;
  };
  Autocast(at::DeviceType device, const State& state);
  [[nodiscard]] State current() const;
  void set(const State& state) const;

  at::DeviceType device_;
  State before_;
};

}  // namespace troika
