#include <ATen/ATen.h>
#include <troika/sync/outer_step.h>

namespace troika {

void take_outer_step(const OuterStep& step, const at::Tensor& anchor, const at::Tensor& velocity,
                     const at::Tensor& gradient) {
  if (velocity.defined()) {
    velocity.mul_(step.momentum).add_(gradient);
    gradient.add_(velocity, step.momentum);
  }
  anchor.sub_(gradient, step.lr);
}

}  // namespace troika
