// Softmax cross-entropy with its gradient in the same pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troika::ops {

// Returns the sum of -log softmax(logits)[target] over rows whose target is not kIgnored: a number
// (0-dim) in fp64, on the device of the logits. `logits` is [rows, classes] in any floating type:
// those of few bits are computed with in fp32. `targets` is int64 [rows].
[[nodiscard]] at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

// Returns that sum, and overwrites `logits` with the gradient of `scale` times it (zero for ignored
// rows).
[[nodiscard]] at::Tensor cross_entropy_with_gradient_(const at::Tensor& logits,
                                                      const at::Tensor& targets, double scale);

// The functions below do the same where each of several ranks has the logits of some of the classes
// only, in three steps. Each rank computes the statistics of its slice. These are gathered (three
// for each row, with any number of classes). Each rank turns its logits into their gradient.

// Returns the statistics of a slice, fp64 [rows, 3]: the largest logit, the sum of exp(logit -
// largest), and the target's logit, or 0 where the target is not in this slice. `logits` [rows,
// classes here] are those of classes [first_class, first_class + classes here), which may be empty.
[[nodiscard]] at::Tensor cross_entropy_slice(const at::Tensor& logits, const at::Tensor& targets,
                                             std::int64_t first_class);

// Returns the sum of cross_entropy(), from the statistics of all slices [slices, rows, 3]. They are
// reduced in the order given: the same bits on every rank.
[[nodiscard]] at::Tensor cross_entropy_of_slices(const at::Tensor& slices,
                                                 const at::Tensor& targets);

// Overwrites the logits of a slice with the gradient of `scale` times that sum.
void cross_entropy_gradient_of_slice_(const at::Tensor& logits, const at::Tensor& targets,
                                      std::int64_t first_class, const at::Tensor& slices,
                                      double scale);

}  // namespace troika::ops
