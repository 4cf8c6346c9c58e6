// What is shown of an error of LibTorch's on a device. LibTorch throws c10::Error, with the lines
// of the device's library; here is one line that names the device, a hint and an exit code.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/error.h>

#include <optional>

namespace troika {

// Returns the error to show for what LibTorch has thrown in a computation on `device`. Its code is
// kInternal where the device is out of memory, kRankDied where it has failed, and kUsage where an
// operator has no deterministic kernel there. Returns nothing for any other error, whose text the
// caller shows.
[[nodiscard]] std::optional<Error> device_error(const c10::Error& error, at::Device device);

// Returns true for an error that is the device's, rather than the caller's: it is out of memory, or
// has failed.
[[nodiscard]] bool is_of_device(const c10::Error& error);

}  // namespace troika
