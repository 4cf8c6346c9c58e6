// Sums that a step takes of its gradients.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::ops {

// Returns the sum of squares of each tensor, fp64 [tensors], on their device. All are of one device
// and one floating type. Takes no memory for copies of those whose elements lie in a row. Without
// tensors the result lies on the host.
[[nodiscard]] at::Tensor square_sums(at::TensorList values);

// Returns the sum of the rows of [rows, dim], in `type`: that in which the device computes with the
// type of `rows` (fp32; fp64 for fp64).
[[nodiscard]] at::Tensor column_sums(const at::Tensor& rows, at::ScalarType type);

}  // namespace troika::ops
