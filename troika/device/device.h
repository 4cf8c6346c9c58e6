// What a tensor lives on: the host's memory, or a device with memory and streams of its own (a GPU;
// whatever LibTorch knows through its dispatcher). Work on a device is queued on the calling
// thread's current stream and goes on by itself; here is how to wait for it. All of it does nothing
// for the host, where everything is done at once. Thread safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/time.h>

#include <cstdint>
#include <memory>
#include <string>

namespace troika {

// Returns "cpu", "cuda:1".
[[nodiscard]] std::string name_of(at::Device device);

// A point in a stream. A small value; one that was never recorded has passed.
class DeviceEvent {
 public:
  DeviceEvent() = default;
  // Records the point that the current stream of `device` has come to, once it has done all that it
  // was given so far.
  [[nodiscard]] static DeviceEvent record(at::Device device);

  [[nodiscard]] bool passed() const;
  // Waits in the host. Throws DeadlineError naming the device and `what`.
  void wait(const Deadline& deadline, const std::string& what) const;
  // Makes the current stream of the device wait; the host goes on.
  void block_stream() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// A stream beside the current one, for copies that go on while the device computes.
class DeviceStream {
 public:
  // Takes one of the device's.
  explicit DeviceStream(at::Device device);
  // Returns the device's default stream.
  [[nodiscard]] static DeviceStream default_of(at::Device device);
  ~DeviceStream();
  DeviceStream(DeviceStream&&) noexcept;
  DeviceStream& operator=(DeviceStream&&) noexcept;

  // Makes it the calling thread's current stream.
  class Scope {
   public:
    explicit Scope(const DeviceStream& stream);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

 private:
  struct Impl;
  explicit DeviceStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Tells the memory of `tensor` that the calling thread's current stream uses it: it is not given
// away before that has passed. For tensors that another stream has allocated.
void record_use(const at::Tensor& tensor);

// Returns memory of the host that copies from and to `device` need not wait for: uninitialised,
// with the shape and dtype of `like`.
[[nodiscard]] at::Tensor host_memory_for(at::Device device, const at::Tensor& like);

// Returns `tensor` in memory of `device`: itself if it lies there. A copy from pinned memory is
// queued on the current stream, and the host goes on.
[[nodiscard]] at::Tensor to_device(const at::Tensor& tensor, at::Device device);

// Returns `tensor` in the host's memory, and waits for it: itself if it lies there.
[[nodiscard]] at::Tensor to_host(const at::Tensor& tensor);

}  // namespace troika
