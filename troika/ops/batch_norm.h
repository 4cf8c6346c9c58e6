// Batch normalisation (Ioffe and Szegedy 2015) of channels-last images with what stands around it
// in a residual block: the addition of a shortcut and ReLU. Forward and backward each read their
// tensors twice, once for the sums of a channel and once for the result.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::ops {

enum class Relu { kAbsent, kApplied };

struct BatchNormResult {
  at::Tensor output;          // [rows, channels], of the input's type
  at::Tensor mean, variance;  // [channels], of the weight's type; the variance is the biased one
};

// Returns (input - mean) / sqrt(variance + eps) x weight + bias + shortcut, rounded once, or 0
// where that is negative and `relu` is applied. `input` and `shortcut`, which may be undefined, are
// [rows, channels] of one floating type. `weight` and `bias` are [channels] of that type, or fp32
// for types of few bits.
[[nodiscard]] BatchNormResult batch_norm(const at::Tensor& input, const at::Tensor& shortcut,
                                         const at::Tensor& weight, const at::Tensor& bias,
                                         double eps, Relu relu);

struct BatchNormGradients {
  at::Tensor input, shortcut;  // [rows, channels]; what a shortcut gets, if there is one
  at::Tensor weight, bias;     // [channels]
};

// Returns the gradients for that of the output.
[[nodiscard]] BatchNormGradients batch_norm_backward(const at::Tensor& gradient,
                                                     const BatchNormResult& result,
                                                     const at::Tensor& input,
                                                     const at::Tensor& weight, double eps,
                                                     Relu relu);

}  // namespace troika::ops
