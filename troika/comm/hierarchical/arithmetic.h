// What a reduction in two steps adds to reduce.h: 16-bit floats are widened before the first step
// and rounded after the last, so that they are rounded once.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::detail {

[[nodiscard]] bool is_narrow(at::ScalarType dtype);
// Both contiguous with equally many elements; one is fp32, the other fp16 or bf16. In this thread
// alone.
void widen(const at::Tensor& to, const at::Tensor& from);
void narrow(const at::Tensor& to, const at::Tensor& from);
// In place, fp32 or fp64.
void divide(const at::Tensor& tensor, int divisor);

}  // namespace troika::detail
