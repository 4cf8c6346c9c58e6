// How a device that is out of memory is reported.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/error.h>
#include <troika/device/facts.h>

namespace troika {

// Returns the error to show for what LibTorch's allocator has thrown: one line with what was asked
// for and where the memory of the device is, and a hint.
[[nodiscard]] Error out_of_memory(const c10::OutOfMemoryError& error, const DeviceFacts& facts);

}  // namespace troika
