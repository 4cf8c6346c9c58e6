// The step that replicas take together once they have trained on their own: SGD with Nesterov's
// momentum, whose gradient is what they have changed (DiLoCo, Douillard et al. 2023). At rate 1
// without momentum it is their mean (local SGD, Stich 2019).
#pragma once

#include <ATen/core/Tensor.h>

namespace troika {

struct OuterStep {
  double lr = 1;
  double momentum = 0;
};

// Takes it. With x the anchor, m the velocity, g the mean of (x - p_i) over replicas p_i, all [n]:
//
//   m = momentum m + g;  x -= lr (g + momentum m)
//
// Without momentum `velocity` may be undefined. Overwrites `gradient`.
void take_outer_step(const OuterStep& step, const at::Tensor& anchor, const at::Tensor& velocity,
                     const at::Tensor& gradient);

}  // namespace troika
