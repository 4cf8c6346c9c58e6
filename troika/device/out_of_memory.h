// How a device that is out of memory is reported.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/error.h>
#include <troika/device/facts.h>

#include <string_view>

namespace troika {

// Returns the error to show for what LibTorch's allocator has thrown: one line with what was asked
// for and where the memory of the device is, and a hint that holds for any program.
[[nodiscard]] Error out_of_memory(const c10::OutOfMemoryError& error, const DeviceFacts& facts);

// Returns true for the message of such an error, with or without words in front of it.
[[nodiscard]] bool is_out_of_memory(std::string_view message);

}  // namespace troika
