// Softmax cross-entropy with its gradient in the same pass.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::ops {

// The sum of -log softmax(logits)[target] over rows whose target is not kIgnored.
// `logits` [rows, classes] fp32 or fp64; `targets` int64 [rows].
[[nodiscard]] double cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

// The same, and overwrites `logits` with the gradient of `scale` times that sum (zero for ignored
// rows).
[[nodiscard]] double cross_entropy_with_gradient_(const at::Tensor& logits,
                                                  const at::Tensor& targets, double scale);

}  // namespace troika::ops
