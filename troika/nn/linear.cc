#include <ATen/ATen.h>
#include <troika/nn/gradient_product.h>
#include <troika/nn/linear.h>
#include <troika/ops/sums.h>

#include <utility>

namespace troika {

LinearCut LinearCut::columns(const TensorAxis& axis, IndexRange outputs) {
  return {Kind::kColumns, outputs, axis, std::nullopt};
}

LinearCut LinearCut::overlapping_columns(const TensorAxis& axis, IndexRange outputs,
                                         std::int64_t counted) {
  return {Kind::kColumns, outputs, axis, counted};
}

LinearCut LinearCut::rows(const TensorAxis& axis, IndexRange inputs) {
  return {Kind::kRows, inputs, axis, std::nullopt};
}

Linear::Linear(const std::string& name, std::int64_t in, std::int64_t out, Bias bias,
               Initializer weight_start, Initializer bias_start, const LinearCut& cut)
    : has_bias_(bias == Bias::kPresent), axis_(cut.axis) {
  weight_spec_.name = name + ".weight";
  weight_spec_.shape = {out, in};
  weight_spec_.initializer = std::move(weight_start);
  bias_spec_.name = name + ".bias";
  bias_spec_.shape = {out};
  bias_spec_.initializer = std::move(bias_start);
  bias_spec_.decays = false;
  if (cut.kind != LinearCut::Kind::kWhole && cut.axis.split()) cut_specs(cut);
}

void Linear::cut_specs(const LinearCut& cut) {
  cut_by_rows_ = cut.kind == LinearCut::Kind::kRows;
  weight_spec_.slice = Slice{cut_by_rows_ ? 1 : 0, cut.range.first, cut.range.end()};
  if (cut_by_rows_) {
    cut.axis.mark_replicated(bias_spec_);
    return;
  }
  bias_spec_.slice = weight_spec_.slice;
  if (!cut.counted) return;
  for (ParameterSpec* spec : {&weight_spec_, &bias_spec_}) {
    spec->partial_over.push_back(Axis::kTensor);
  }
  weight_spec_.owned = *cut.counted * weight_spec_.shape[1];
  bias_spec_.owned = cut.counted;
}

void Linear::adapt(LoraTargets& targets) {
  constexpr std::string_view kEnd = ".weight";
  if (!targets.take(weight_spec_.name.substr(0, weight_spec_.name.size() - kEnd.size()))) return;
  lora_.emplace(weight_spec_, axis_, targets);
}

void Linear::declare(std::vector<ParameterSpec>& specs) const {
  specs.push_back(weight_spec_);
  if (has_bias_) specs.push_back(bias_spec_);
  if (lora_) lora_->declare(specs);
}

void Linear::bind(const Arena& arena) {
  weight_ = &arena.parameter(weight_spec_.name);
  if (has_bias_) bias_ = &arena.parameter(bias_spec_.name);
  if (lora_) lora_->bind(arena);
}

at::Tensor Linear::forward(const at::Tensor& input, LoraPass* pass) const {
  const at::Tensor transposed = weight_->working_weight().t();
  const bool add_bias = bias_ && !cut_by_rows_;
  at::Tensor output =
      add_bias ? at::addmm(bias_->working_weight(), input, transposed) : at::mm(input, transposed);
  if (lora_) lora_->add_output_(output, input, pass);
  return output;
}

at::Tensor Linear::backward_input(const at::Tensor& gradient, LoraPass* pass) const {
  at::Tensor input_gradient = at::mm(gradient, weight_->working_weight());
  if (lora_ && pass != nullptr) {
    lora_->backward_inner(gradient, *pass);
    lora_->add_input_gradient_(input_gradient, *pass);
  }
  return input_gradient;
}

void Linear::backward_weight(const at::Tensor& gradient, const at::Tensor& input,
                             const LoraPass* pass) const {
  add_gradient_product(*weight_, gradient, input);
  if (lora_ && pass != nullptr) lora_->add_gradients(gradient, input, *pass);
  if (!cut_by_rows_) sum_bias_gradient(gradient);
}

void Linear::add_bias_(const at::Tensor& sums) const {
  if (bias_ && cut_by_rows_) sums.add_(bias_->working_weight());
}

void Linear::add_bias_gradient(const at::Tensor& gradient) const {
  if (cut_by_rows_) sum_bias_gradient(gradient);
}

void Linear::sum_bias_gradient(const at::Tensor& gradient) const {
  if (bias_ && bias_->is_trained()) {
    bias_->add_gradient(ops::column_sums(gradient, bias_->master_type()));
  }
}

}  // namespace troika
