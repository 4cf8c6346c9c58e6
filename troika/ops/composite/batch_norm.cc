// Batch normalisation in ATen's operators.
#include <ATen/ATen.h>
#include <troika/ops/kernels.h>

namespace troika::ops::composite {

ThreeTensors batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& shortcut,
                        const at::Tensor& weight, const at::Tensor& bias, double eps, bool relu) {
  const at::Tensor values = input.to(weight.scalar_type());
  auto [variance, mean] = at::var_mean(values, at::IntArrayRef{0}, /*correction=*/0);
  at::Tensor output = (values - mean) * ((variance + eps).rsqrt_() * weight) + bias;
  if (shortcut) output += *shortcut;
  if (relu) output.relu_();
  return {output.to(input.scalar_type()), std::move(mean), std::move(variance)};
}

FourTensors batch_norm_backward(const at::Tensor& gradient, const at::Tensor& output,
                                const at::Tensor& input, const at::Tensor& weight,
                                const at::Tensor& mean, const at::Tensor& variance, double eps,
                                bool relu) {
  const at::Tensor of_shortcut =
      relu ? gradient.masked_fill(output <= 0, 0) : gradient;  // NaN is not hidden
  const at::Tensor slope = of_shortcut.to(weight.scalar_type());
  const at::Tensor reciprocal = (variance + eps).rsqrt_();
  const at::Tensor normalised = (input.to(weight.scalar_type()) - mean) * reciprocal;
  at::Tensor of_weight = (slope * normalised).sum(0), of_bias = slope.sum(0);
  const auto rows = static_cast<double>(input.size(0));
  const at::Tensor of_input =
      (slope - of_bias / rows - normalised * (of_weight / rows)) * (reciprocal * weight);
  return {of_input.to(input.scalar_type()), of_shortcut, std::move(of_weight), std::move(of_bias)};
}

}  // namespace troika::ops::composite
