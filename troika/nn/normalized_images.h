// Extends LibTorch: a torch::nn::BatchNorm2d in training together with what stands around it in a
// residual block, in the few passes of ops/batch_norm.h. The module keeps its parameters, its
// buffers and their names.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <troika/ops/batch_norm.h>

namespace troika {

// Returns relu(norm(input) + shortcut), or that without ReLU; an undefined shortcut adds nothing.
// It is differentiable once. Running statistics are updated as the module does it. In eval(), for
// images that are not channels last, and on devices it is made of LibTorch's own operators.
[[nodiscard]] at::Tensor normalized(torch::nn::BatchNorm2dImpl& norm, const at::Tensor& input,
                                    const at::Tensor& shortcut, ops::Relu relu);

// Returns relu(input + shortcut), or the sum alone, in LibTorch's operators.
[[nodiscard]] at::Tensor with_shortcut(const at::Tensor& input, const at::Tensor& shortcut,
                                       ops::Relu relu);

}  // namespace troika
