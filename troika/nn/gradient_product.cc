#include <ATen/ATen.h>
#include <troika/nn/gradient_product.h>
#include <troika/ops/product.h>

namespace troika {

void add_gradient_product(Parameter& weight, const at::Tensor& left, const at::Tensor& right) {
  if (!weight.is_trained()) return;
  const ops::Write write = weight.claim() ? ops::Write::kAdd : ops::Write::kOverwrite;
  ops::add_product_(weight.gradient(), left, right, write);
}

}  // namespace troika
