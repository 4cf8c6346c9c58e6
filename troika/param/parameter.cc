#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/param/parameter.h>

namespace troika {

Parameter::Parameter(ParameterSpec spec, at::Tensor master, at::Tensor value, at::Tensor gradient)
    : spec_(std::move(spec)),
      master_(std::move(master)),
      value_(std::move(value)),
      gradient_(std::move(gradient)) {}

void Parameter::claim_zeroed() {
  if (!claimed_) gradient_.zero_();
  claimed_ = true;
}

void Parameter::add_gradient(const at::Tensor& contribution) {
  if (contribution.sizes() != gradient_.sizes()) {  // which add_ and copy_ would broadcast
    throw InternalError("internal error: a gradient of another shape for '" + spec_.name + "'");
  }
  if (claimed_) {
    gradient_.add_(contribution);
  } else {
    gradient_.copy_(contribution);
  }
  claimed_ = true;
}

void Parameter::add_gradient_product(const at::Tensor& left, const at::Tensor& right) {
  if (left.scalar_type() != gradient_.scalar_type()) {
    add_gradient(at::mm(left.t(), right));
    return;
  }
  if (claimed_) {
    gradient_.addmm_(left.t(), right);
  } else {
    at::mm_out(gradient_, left.t(), right);
  }
  claimed_ = true;
}

}  // namespace troika
