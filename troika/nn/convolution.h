// The convolutions of small images on the host as matrix products. Where a weight outweighs what it
// is applied to, as in the last layers of a residual network, a library's loops over pixels reach a
// third of the products' speed, and an eighth in the gradient of the weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troika {

// Returns the convolution of `input` [n, in, height, width] with `weight` [out, in, kernel, kernel]
// without bias, differentiable once. Where an image has at most 4 x 4 outputs, lies in host memory
// and is channels last, all but a strided convolution's input gradient are products; else LibTorch
// computes it.
[[nodiscard]] at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight,
                                  std::int64_t stride, std::int64_t padding);

}  // namespace troika
