#include <ATen/ATen.h>
#include <troika/ops/composite/kernels.h>

namespace troika::ops::composite {

void adamw_(const at::Tensor& master, const at::Tensor& gradient, const at::Tensor& exp_avg,
            const at::Tensor& exp_avg_sq, double gradient_scale, double beta1, double beta2,
            double correction, double eps, double rate, double shrink) {
  const at::Tensor g = gradient * gradient_scale;
  exp_avg.mul_(beta1).add_(g, 1 - beta1);
  exp_avg_sq.mul_(beta2).addcmul_(g, g, 1 - beta2);
  master.mul_(shrink).sub_((exp_avg * correction).div_(exp_avg_sq.sqrt().add_(eps)), rate);
}

}  // namespace troika::ops::composite
