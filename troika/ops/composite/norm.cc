#include <ATen/ATen.h>
#include <troika/ops/composite/kernels.h>

namespace troika::ops::composite {

TwoTensors rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps) {
  const at::Tensor x = input.to(weight.scalar_type());
  const at::Tensor reciprocal = (x.square().mean(1) + eps).rsqrt();
  return {(x * reciprocal.unsqueeze(1) * weight).to(input.scalar_type()), reciprocal};
}

// With n = x r: dx = r (w dy - n mean(w dy n)), and dw = sum of dy n.
TwoTensors rms_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                             const at::Tensor& weight, const at::Tensor& reciprocal) {
  const at::Tensor r = reciprocal.unsqueeze(1), dy = gradient.to(weight.scalar_type());
  const at::Tensor n = input.to(weight.scalar_type()) * r, slope = dy * weight;
  const at::Tensor dx = r * (slope - n * (slope * n).mean(1, true));
  return {dx.to(input.scalar_type()), (dy * n).sum(0)};
}

}  // namespace troika::ops::composite
