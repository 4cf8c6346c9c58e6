// Device tensors as the host computes with them while a kernel runs, and the way back.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace troika::test {

// Serves one kernel. Tensors that share memory on the device share it on the host.
class HostAliases {
 public:
  // Results that are new tensors go to this device.
  explicit HostAliases(c10::Device device) : device_(device) {}

  // Returns a CPU tensor over the memory of a device tensor.
  [[nodiscard]] at::Tensor of(const at::Tensor& device_tensor);

  // Returns the device tensor that a CPU kernel's result stands for: an argument itself, a view of
  // an argument, or a new tensor, to which it copies the values.
  [[nodiscard]] at::Tensor result(const at::Tensor& host_tensor);

  // Tells a result in new memory, which no argument had before the kernel.
  [[nodiscard]] bool is_new(const at::Tensor& device_tensor) const {
    return fresh_.contains(device_tensor.storage().unsafeGetStorageImpl());
  }

  // Gives the shapes, and the memory, that a kernel has changed on the host to the device tensors.
  void publish_shapes();

 private:
  struct Argument {
    at::Tensor device;
    at::Tensor host;
    const void* data;  // of the host storage
  };

  [[nodiscard]] c10::Storage storage_on_device(const c10::Storage& host);

  c10::Device device_;
  std::vector<Argument> arguments_;
  std::unordered_set<const c10::StorageImpl*> fresh_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage>
      host_storages_;  // by that of the device
  std::unordered_map<const c10::StorageImpl*, c10::Storage>
      device_storages_;  // by that of the host
};

// Returns a tensor over this memory, with the type, sizes, strides and offset of another.
[[nodiscard]] at::Tensor like_over(const c10::Storage& storage, const at::Tensor& other,
                                   c10::DispatchKey key);

// Allocates memory of a device, for the current stream.
[[nodiscard]] c10::Storage new_device_storage(std::size_t bytes, c10::Device device);

}  // namespace troika::test
