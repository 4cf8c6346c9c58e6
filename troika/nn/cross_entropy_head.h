// The last layer of a language model with its loss, for modules of your own: the softmax
// cross-entropy of hidden x weight^T without all of its logits. With 50,000 words they are most of
// what a step computes, and most of its memory.
//
//   const torch::Tensor loss = troika::cross_entropy_head(hidden, output->weight, targets);
//   loss.backward();
#pragma once

#include <ATen/core/Tensor.h>

namespace troika {

enum class HeadReduction { kMean, kSum };

// Returns a number that autograd can differentiate once with respect to `hidden` and `weight`: the
// mean over the targets that count, or the sum, in fp32, or fp64 where both tensors are. `hidden`
// is [..., dim], `weight` [vocabulary, dim], `targets` int64 [...]. A negative target, such as
// PyTorch's -100, does not count. Under Autocast products take its type, and the weight's gradient
// is summed in fp32. Gradients are computed with the loss, in chunks of tokens. Throws UsageError
// naming shapes that do not go together, and DataError naming a target outside of the vocabulary.
[[nodiscard]] at::Tensor cross_entropy_head(const at::Tensor& hidden, const at::Tensor& weight,
                                            const at::Tensor& targets,
                                            HeadReduction reduction = HeadReduction::kMean);

}  // namespace troika
