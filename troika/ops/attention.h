// Softmax attention in one pass (Dao et al. 2022), and its gradient, by what each device does best.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::ops {

struct AttentionResult {
  at::Tensor output;   // [samples, heads, length, head_dim]
  at::Tensor log_sum;  // log of the sum of exp(score) by query, for the backward pass
};

// Returns softmax(q k^T / sqrt(head_dim)) v of [samples, heads, length, head_dim] tensors. `mask`
// is added to the scores, [samples, 1, length, length]; if undefined, a position attends to itself
// and those before it.
[[nodiscard]] AttentionResult attention(const at::Tensor& query, const at::Tensor& key,
                                        const at::Tensor& value, const at::Tensor& mask);

struct AttentionInputGradients {
  at::Tensor query, key, value;
};

// Returns the gradients for that of the output.
[[nodiscard]] AttentionInputGradients attention_backward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& mask, const AttentionResult& result);

}  // namespace troika::ops
