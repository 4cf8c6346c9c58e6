// Normalisation of rows with its gradient, fused into few passes: by the root mean square (Zhang
// and Sennrich 2019), and by mean and variance (Ba et al. 2016). Weights and statistics are fp32,
// and fp64 for fp64 input.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::ops {

struct RmsNormResult {
  at::Tensor output;      // [rows, dim], input's type
  at::Tensor reciprocal;  // [rows], 1 / rms, fp32 (fp64 for fp64 input)
};

// Returns y = x / sqrt(mean(x^2) + eps) * weight, row by row. `input` is [rows, dim]; `weight` is
// [dim] in fp32 (fp64 for fp64 input).
[[nodiscard]] RmsNormResult rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps);

struct RmsNormGradients {
  at::Tensor input;   // [rows, dim], input's type
  at::Tensor weight;  // [dim], weight's type
};

// Returns the gradients. The weight's is summed over fixed chunks of rows, so it does not depend on
// the thread count.
[[nodiscard]] RmsNormGradients rms_norm_backward(const at::Tensor& gradient,
                                                 const at::Tensor& input, const at::Tensor& weight,
                                                 const at::Tensor& reciprocal);

struct LayerNormResult {
  at::Tensor output;            // [rows, dim], input's type
  at::Tensor mean, reciprocal;  // [rows], and 1 / standard deviation
};

// Returns y = (x - mean) / sqrt(variance + eps) * weight + bias, row by row. `input` is [rows,
// dim]; `weight` is [dim], as is `bias`, which may be undefined.
[[nodiscard]] LayerNormResult layer_norm(const at::Tensor& input, const at::Tensor& weight,
                                         const at::Tensor& bias, double eps);

struct LayerNormGradients {
  at::Tensor input;         // [rows, dim], input's type
  at::Tensor weight, bias;  // [dim], weight's type
};

// Returns the gradients, with sums over rows in a fixed order.
[[nodiscard]] LayerNormGradients layer_norm_backward(const at::Tensor& gradient,
                                                     const at::Tensor& input,
                                                     const at::Tensor& weight,
                                                     const at::Tensor& mean,
                                                     const at::Tensor& reciprocal);

}  // namespace troika::ops
