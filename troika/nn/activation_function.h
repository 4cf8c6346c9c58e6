// The element-wise non-linearities of feed-forward layers, each with its gradient.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/config/key.h>

namespace troika {

enum class ActivationFunction { kSwiGlu, kGelu, kGeluTanh, kRelu, kTanh };

template <>
std::span<const std::string_view> names_of<ActivationFunction>();

// Applies gelu (exact), gelu_tanh, relu or tanh. swiglu takes two inputs: see ops/swiglu.h.
[[nodiscard]] at::Tensor apply(ActivationFunction kind, const at::Tensor& input);
// Returns the input gradient. `output` is the result of apply() for `input`.
[[nodiscard]] at::Tensor apply_backward(ActivationFunction kind, const at::Tensor& gradient,
                                        const at::Tensor& input, const at::Tensor& output);

}  // namespace troika
