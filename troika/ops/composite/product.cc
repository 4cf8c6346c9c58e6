// The gradient of a matrix product's weight, added to a sum, in ATen's operators.
#include <ATen/ATen.h>
#include <troika/ops/kernels.h>

namespace troika::ops::composite {

void add_product_(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right,
                  bool overwrites) {
  at::Tensor out = sum;
  const bool wider = left.scalar_type() != sum.scalar_type();
  if (wider && overwrites) {
    out.copy_(at::mm(left.t(), right));
  } else if (wider) {
    out.add_(at::mm(left.t(), right).to(sum.scalar_type()));
  } else if (overwrites) {
    at::mm_out(out, left.t(), right);
  } else {
    out.addmm_(left.t(), right);
  }
}

}  // namespace troika::ops::composite
