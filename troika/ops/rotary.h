// Rotary position embedding (Su et al. 2021), in the rotate-half convention of Hugging Face's
// Llama.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troika::ops {

// Returns cos and sin of position x theta^(-2i / head_dim), [2, positions, head_dim / 2], computed
// in fp64 on the host, rounded to the dtype of `options` and moved to its device.
[[nodiscard]] at::Tensor rotary_table(std::int64_t positions, std::int64_t head_dim, double theta,
                                      const at::TensorOptions& options);

enum class Rotation { kForward, kBackward };

// Rotates every head of `heads` in place, [tokens, heads x head_dim] contiguous. `positions` is
// int64 [tokens]. `table` is in fp32 (fp64 for fp64 heads). Backward rotates by the opposite angle,
// which is the gradient.
void rotate_(const at::Tensor& heads, const at::Tensor& positions, const at::Tensor& table,
             Rotation rotation);

}  // namespace troika::ops
