#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/param/parameter.h>

namespace troika {

Parameter::Parameter(ParameterSpec spec, at::ScalarType master_type, at::Tensor master,
                     at::Tensor working_weight, at::Tensor gradient)
    : spec_(std::move(spec)),
      master_type_(master_type),
      master_(std::move(master)),
      working_weight_(std::move(working_weight)),
      gradient_(std::move(gradient)) {}

const at::Tensor& Parameter::refuse(const char* what) const {
  throw InternalError(
      "internal error: the " + std::string(what) + " of '" + spec_.name + "' is not whole here now",
      "at the run's ZeRO stage it is there between the hooks around its unit only");
}

void Parameter::claim_zeroed() {
  if (!is_trained()) return;
  if (!claimed_) gradient().zero_();
  claimed_ = true;
}

void Parameter::add_gradient(const at::Tensor& contribution) {
  if (!is_trained()) return;
  if (contribution.sizes() != gradient().sizes()) {  // which add_ and copy_ would broadcast
    throw InternalError("internal error: a gradient of another shape for '" + spec_.name + "'");
  }
  if (claimed_) {
    gradient_.add_(contribution.to(gradient_.scalar_type()));  // as add_ does, but for all to see
  } else {
    gradient_.copy_(contribution);
  }
  claimed_ = true;
}

}  // namespace troika
