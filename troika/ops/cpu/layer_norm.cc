// LayerNorm and its gradient on the host.
#include <ATen/ATen.h>
#include <troika/ops/kernels.h>
#include <troika/ops/rows.h>

namespace troika::ops::cpu {

ThreeTensors layer_norm(const at::Tensor& input, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, double eps) {
  return at::native_layer_norm(input, {input.size(1)}, weight, bias, eps);
}

ThreeTensors layer_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                                 const at::Tensor& weight, const at::Tensor& mean,
                                 const at::Tensor& reciprocal) {
  // ATen's gradient of the weight is off by a percent for such inputs.
  if (is_of_few_bits(input)) {
    auto [dx, dweight, dbias] = layer_norm_backward(gradient.to(at::kFloat), input.to(at::kFloat),
                                                    weight, mean, reciprocal);
    return {dx.to(input.scalar_type()), dweight, dbias};
  }
  return at::native_layer_norm_backward(gradient, input, {input.size(1)}, mean, reciprocal, weight,
                                        /*bias=*/weight, {true, true, true});
}

}  // namespace troika::ops::cpu
