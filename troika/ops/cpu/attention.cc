// Attention on the host.
#include <ATen/ATen.h>
#include <troika/ops/kernels.h>

namespace troika::ops::cpu {

TwoTensors attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask) {
  return at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, !mask, mask);
}

ThreeTensors attention_backward(const at::Tensor& gradient, const at::Tensor& query,
                                const at::Tensor& key, const at::Tensor& value,
                                const std::optional<at::Tensor>& mask, const at::Tensor& output,
                                const at::Tensor& log_sum) {
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(
      gradient, query, key, value, output, log_sum, 0.0, !mask, mask);
}

}  // namespace troika::ops::cpu
