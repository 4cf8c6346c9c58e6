// Internal. Divides gradients by a loss scale, and looks for those that are not finite, without
// waiting for their device.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace troika::detail {

// Divides dense gradients by `scale`, in place. Returns a number on the device of the first, fp32:
// 1 if any of the gradients is not finite, else 0. Gradients may be of several dtypes, and on
// several devices.
[[nodiscard]] at::Tensor unscale_gradients(std::span<const at::Tensor> gradients, double scale);

// Does the same with operations that every device has: for devices without LibTorch's kernel, and
// as its reference. The gradients are on one device.
[[nodiscard]] at::Tensor unscale_one_by_one(std::span<const at::Tensor> gradients, double scale);

}  // namespace troika::detail
