// The gated activation in ATen's operators.
#include <ATen/ATen.h>
#include <troika/ops/kernels.h>

namespace troika::ops::composite {

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return at::silu(gate).mul_(up);
}

TwoTensors swiglu_backward(const at::Tensor& gradient, const at::Tensor& gate,
                           const at::Tensor& up) {
  at::Tensor of_up = at::silu(gate).mul_(gradient);
  return {at::silu_backward(gradient * up, gate), std::move(of_up)};
}

}  // namespace troika::ops::composite
