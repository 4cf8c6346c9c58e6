// Rotary position embedding (Su et al. 2021), in the rotate-half convention of Hugging Face's
// Llama.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troika::ops {

enum class RotaryScaling {
  kNone,
  kLinear,  // divides all angles by `factor` (Chen et al. 2023)
  kLlama3,  // divides the angles of long waves alone, with a smooth passage (Llama 3.1)
};

// Describes the angles that turn the pairs of a head: position x theta^(-2i / head_dim), scaled.
struct RotaryAngles {
  double theta = 10000;
  RotaryScaling scaling = RotaryScaling::kNone;
  double factor = 1;
  // Apply to kLlama3: a wave shorter than original_len / high_freq_factor tokens stays, and one
  // longer than original_len / low_freq_factor is divided by `factor`.
  double low_freq_factor = 1, high_freq_factor = 4;
  std::int64_t original_len = 8192;
};

// Returns cos and sin of the angles, [2, positions, head_dim / 2], computed in fp64 on the host,
// rounded to the dtype of `options` and moved to its device.
[[nodiscard]] at::Tensor rotary_table(std::int64_t positions, std::int64_t head_dim,
                                      const RotaryAngles& angles, const at::TensorOptions& options);

enum class Rotation { kForward, kBackward };

// Rotates every head of `heads` in place, [tokens, heads x head_dim] contiguous. `positions` is
// int64 [tokens]. `table` is in fp32 (fp64 for fp64 heads). Backward rotates by the opposite angle,
// which is the gradient.
void rotate_(const at::Tensor& heads, const at::Tensor& positions, const at::Tensor& table,
             Rotation rotation);

}  // namespace troika::ops
