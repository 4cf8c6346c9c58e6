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
};

// From now on counts tensors of `device`, kCPU or kMeta (which have sizes but no memory), until the
// process ends. To be called before other threads use tensors; again it does nothing.
void count_tensor_memory(at::DeviceType device);
// Of what has been counted; zero for a device that is not. Thread-safe.
[[nodiscard]] TensorMemory tensor_memory(at::DeviceType device);
// The peak is what is alive now. Thread-safe.
void reset_peak(at::DeviceType device);

}  // namespace troika
