// Adds to reduce.h what a reduction in two steps needs. It widens 16-bit floats before the first
// step and rounds after the last, so that they are rounded once.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::detail {

[[nodiscard]] bool is_narrow(at::ScalarType dtype);
// Convert between fp32 and fp16 or bf16, in this thread alone. Both tensors are contiguous, with
// equally many elements.
void widen(const at::Tensor& to, const at::Tensor& from);
void narrow(const at::Tensor& to, const at::Tensor& from);
// Divides in place; `tensor` is fp32 or fp64.
void divide(const at::Tensor& tensor, int divisor);

}  // namespace troika::detail
