// The gradient of the weight of a linear layer.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/param/parameter.h>

namespace troika {

// Adds left^T right to the gradient of a weight [out, in], from left [n, out] and right [n, in].
// Computes nothing where the weight is frozen.
void add_gradient_product(Parameter& weight, const at::Tensor& left, const at::Tensor& right);

}  // namespace troika
