// How many bytes tensors have in this process: what is alive now, and the most that ever was.
// Counted where LibTorch takes memory, so the temporary tensors of its operators are included, and
// where an engine gives out memory that peers can read (Group::allocate).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troika {

struct TensorMemory {
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;  // since counting began, or since reset_peak()
  // The most that the allocator of a device had taken of its memory, since then; 0 on the host.
  std::int64_t peak_reserved_bytes = 0;
};

// Starts to count tensors of `device`, kCPU or kMeta (which have sizes but no memory), until the
// process ends. Call before other threads use tensors; a second call has no effect.
void count_tensor_memory(at::DeviceType device);
// Returns the counts; zero for a device that is not counted. Others than these two are always
// counted, by LibTorch's allocator of the device. Thread-safe.
[[nodiscard]] TensorMemory tensor_memory(at::Device device);
// Sets the peak to the bytes that are live now. Thread-safe.
void reset_peak(at::Device device);

}  // namespace troika
