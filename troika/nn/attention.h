// Causal self-attention with grouped key and value heads, fused (Dao et al. 2022), and its
// gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace troika {

// The head counts are those of this rank.
struct AttentionShape {
  std::int64_t samples = 0;
  std::int64_t length = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  // The key and value head that each query head reads, ascending. If empty, heads / kv_heads
  // neighbouring query heads share each one.
  std::vector<std::int64_t> reads = {};
};

// The tensors that the backward pass needs, and the output [samples x length, heads x head_dim].
struct AttentionState {
  at::Tensor query, key, value;  // [samples, heads, length, head_dim], kv heads repeated
  at::Tensor mask;               // undefined: causal alone
  at::Tensor output, log_sum;
};

// Returns softmax(q k^T / sqrt(head_dim)) v. `query` is [samples x length, heads x head_dim]. `key`
// and `value` are [samples x length, kv_heads x head_dim]. `mask` comes from document_mask(), or is
// undefined.
[[nodiscard]] at::Tensor attention(const at::Tensor& query, const at::Tensor& key,
                                   const at::Tensor& value, const AttentionShape& shape,
                                   const at::Tensor& mask, AttentionState& state);

struct AttentionGradients {
  at::Tensor query, key, value;  // shaped like the inputs of attention()
};

[[nodiscard]] AttentionGradients attention_backward(const AttentionState& state,
                                                    const AttentionShape& shape,
                                                    const at::Tensor& gradient);

// Returns [samples, 1, length, length]: 0 where position j <= i lies in the document of i, else
// -infinity. `document_ids` is int64 [samples, length].
[[nodiscard]] at::Tensor document_mask(const at::Tensor& document_ids, at::ScalarType type);

// Returns int64 [samples x length] for `ids` [samples, length]: 0, 1, 2, ... from the start of each
// sample. Where `document_ids` is defined, numbers start again with each document.
[[nodiscard]] at::Tensor token_positions(const at::Tensor& ids, const at::Tensor& document_ids);

}  // namespace troika
