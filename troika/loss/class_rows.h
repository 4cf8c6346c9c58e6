// Several classes a sample, such as one a token or a pixel, as rows of one class each.
#pragma once

#include <troika/loss/loss_targets.h>

namespace troika {

struct ClassRows {
  at::Tensor outputs;   // [targets, classes]
  LossTargets targets;  // their values, weights and samples, [targets]
};

// Takes logits [samples, ..., classes], or as PyTorch's cross_entropy has them [samples, classes,
// ...], and targets [samples, ...]. Where both fit, the classes are the last dimension. Gives those
// of one target a sample back as they are. Throws UsageError naming shapes that do not go together.
[[nodiscard]] ClassRows class_rows(const at::Tensor& outputs, const LossTargets& targets);

// Returns the classes of such logits as their last dimension.
[[nodiscard]] at::Tensor classes_last(const at::Tensor& outputs, at::IntArrayRef targets);

}  // namespace troika
