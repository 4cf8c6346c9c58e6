// RMSNorm, LayerNorm and their gradients in ATen's operators.
#include <ATen/ATen.h>
#include <troika/ops/kernels.h>

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

ThreeTensors layer_norm(const at::Tensor& input, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, double eps) {
  const at::Tensor x = input.to(weight.scalar_type()), mean = x.mean(1);
  const at::Tensor centred = x - mean.unsqueeze(1);
  const at::Tensor reciprocal = (centred.square().mean(1) + eps).rsqrt();
  const at::Tensor scaled = centred * reciprocal.unsqueeze(1) * weight;
  return {(bias ? scaled + *bias : scaled).to(input.scalar_type()), mean, reciprocal};
}

// With n = (x - mean) r: dx = r (w dy - mean(w dy) - n mean(w dy n)), dw = sum of dy n.
ThreeTensors layer_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                                 const at::Tensor& weight, const at::Tensor& mean,
                                 const at::Tensor& reciprocal) {
  const at::Tensor r = reciprocal.unsqueeze(1), dy = gradient.to(weight.scalar_type());
  const at::Tensor n = (input.to(weight.scalar_type()) - mean.unsqueeze(1)) * r;
  const at::Tensor slope = dy * weight;
  const at::Tensor dx = r * (slope - slope.mean(1, true) - n * (slope * n).mean(1, true));
  return {dx.to(input.scalar_type()), (dy * n).sum(0), dy.sum(0)};
}

}  // namespace troika::ops::composite
