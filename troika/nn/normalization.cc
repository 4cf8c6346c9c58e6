#include <ATen/ATen.h>
#include <troika/nn/normalization.h>
#include <troika/ops/norm.h>

namespace troika {

template <>
std::span<const std::string_view> names_of<Norm>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"rmsnorm", "layernorm"});
  return kNames;
}

Normalization::Normalization(const std::string& name, std::int64_t dim, Norm kind, bool bias,
                             double eps, const TensorAxis& axis)
    : kind_(kind), has_bias_(bias && kind == Norm::kLayerNorm), eps_(eps) {
  weight_spec_.name = name + ".weight";
  weight_spec_.shape = {dim};
  weight_spec_.initializer = Initializer::constant(1);
  weight_spec_.decays = false;
  weight_spec_.keep_fp32 = true;
  axis.mark_replicated(weight_spec_);
  bias_spec_ = weight_spec_;
  bias_spec_.name = name + ".bias";
  bias_spec_.initializer = Initializer::constant(0);
}

void Normalization::declare(std::vector<ParameterSpec>& specs) const {
  specs.push_back(weight_spec_);
  if (has_bias_) specs.push_back(bias_spec_);
}

void Normalization::bind(const Arena& arena) {
  weight_ = &arena.parameter(weight_spec_.name);
  if (has_bias_) bias_ = &arena.parameter(bias_spec_.name);
}

at::Tensor Normalization::forward(const at::Tensor& input, State& state) const {
  state.input = input;
  if (kind_ == Norm::kRmsNorm) {
    auto [output, reciprocal] = ops::rms_norm(input, weight_->working_weight(), eps_);
    state.reciprocal = std::move(reciprocal);
    return output;
  }
  auto [output, mean, reciprocal] = ops::layer_norm(
      input, weight_->working_weight(), bias_ ? bias_->working_weight() : at::Tensor(), eps_);
  state.mean = std::move(mean);
  state.reciprocal = std::move(reciprocal);
  return output;
}

at::Tensor Normalization::backward(const State& state, const at::Tensor& gradient) const {
  if (kind_ == Norm::kRmsNorm) {
    auto [dx, dweight] =
        ops::rms_norm_backward(gradient, state.input, weight_->working_weight(), state.reciprocal);
    weight_->add_gradient(dweight);
    return dx;
  }
  auto [dx, dweight, dbias] = ops::layer_norm_backward(
      gradient, state.input, weight_->working_weight(), state.mean, state.reciprocal);
  weight_->add_gradient(dweight);
  if (bias_) bias_->add_gradient(dbias);
  return dx;
}

}  // namespace troika
