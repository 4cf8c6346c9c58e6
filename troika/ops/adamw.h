// AdamW (Loshchilov and Hutter 2019, algorithm 2) for memory of a device, in one pass where it has
// a kernel.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::ops {

// The constants of an update, the same for all its elements.
struct AdamWConstants {
  double beta1, beta2;
  double correction;  // of the biases: sqrt(1 - beta2^t) / (1 - beta1^t)
  double eps;         // times sqrt(1 - beta2^t)
  double rate;        // the learning rate
  double shrink;      // 1 - rate x weight decay
};

// Updates the averages m and v and the weights w, if `applies`, a bool, is true; else leaves their
// bits. Both numbers are 0-dim tensors beside the others. With g = scale x gradient (scale in
// fp64):
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//   w = shrink w - rate correction m / (sqrt(v) + eps)
// All four have one shape, one type, fp32 or fp64, and elements in a row.
void adamw_(const at::Tensor& master, const at::Tensor& gradient, const at::Tensor& exp_avg,
            const at::Tensor& exp_avg_sq, const at::Tensor& scale, const at::Tensor& applies,
            const AdamWConstants& constants);

}  // namespace troika::ops
