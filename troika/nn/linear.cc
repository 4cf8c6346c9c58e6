#include <ATen/ATen.h>
#include <troika/nn/linear.h>

namespace troika {

Linear::Linear(const std::string& name, std::int64_t in, std::int64_t out, Bias bias,
               Initializer weight_start, Initializer bias_start)
    : has_bias_(bias == Bias::kPresent) {
  weight_spec_.name = name + ".weight";
  weight_spec_.shape = {out, in};
  weight_spec_.initializer = weight_start;
  bias_spec_.name = name + ".bias";
  bias_spec_.shape = {out};
  bias_spec_.initializer = bias_start;
  bias_spec_.decays = false;
}

void Linear::declare(std::vector<ParameterSpec>& specs) const {
  specs.push_back(weight_spec_);
  if (has_bias_) specs.push_back(bias_spec_);
}

void Linear::bind(const Arena& arena) {
  weight_ = &arena.parameter(weight_spec_.name);
  if (has_bias_) bias_ = &arena.parameter(bias_spec_.name);
}

at::Tensor Linear::forward(const at::Tensor& input) const {
  const at::Tensor transposed = weight_->value().t();
  return bias_ ? at::addmm(bias_->value(), input, transposed) : at::mm(input, transposed);
}

at::Tensor Linear::backward_input(const at::Tensor& gradient) const {
  return at::mm(gradient, weight_->value());
}

void Linear::backward_weight(const at::Tensor& gradient, const at::Tensor& input) const {
  weight_->add_gradient_product(gradient, input);
  if (bias_) bias_->add_gradient(at::sum(gradient, {0}, false, bias_->gradient().scalar_type()));
}

}  // namespace troika
