// The update of AdamW in ATen's operators, for devices without a kernel of their own.
#include <ATen/ATen.h>
#include <troika/ops/kernels.h>
#include <troika/ops/write_if.h>

namespace troika::ops::composite {

void adamw_(const at::Tensor& master, const at::Tensor& gradient, const at::Tensor& exp_avg,
            const at::Tensor& exp_avg_sq, const at::Tensor& scale, const at::Tensor& applies,
            double beta1, double beta2, double correction, double eps, double rate, double shrink) {
  const at::Tensor g = gradient * scale;
  write_if(applies, exp_avg, (exp_avg * beta1).add_(g, 1 - beta1));
  write_if(applies, exp_avg_sq, (exp_avg_sq * beta2).addcmul_(g, g, 1 - beta2));
  const at::Tensor direction = (exp_avg * correction).div_(exp_avg_sq.sqrt().add_(eps));
  write_if(applies, master, (master * shrink).sub_(direction, rate));
}

}  // namespace troika::ops::composite
