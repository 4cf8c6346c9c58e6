// How far apart rounding leaves values that replicas compute alike, each on its own processor.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika {

// Returns whether two tensors in the host's memory, contiguous and of one dtype and shape, differ
// by no more than rounding does in some hundred steps. A NaN is equal to a NaN. False for whole
// numbers that differ.
[[nodiscard]] bool is_equal_but_for_rounding(const at::Tensor& actual, const at::Tensor& expected);

}  // namespace troika
