#include <ATen/ATen.h>
#include <fnmatch.h>
#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/base/text.h>
#include <troika/nn/gradient_product.h>
#include <troika/nn/lora.h>
#include <troika/ops/dropout.h>

#include <cmath>

namespace troika {
namespace {

std::string layer_of(const ParameterSpec& weight) {
  constexpr std::string_view kEnd = ".weight";
  check(weight.name.ends_with(kEnd), "the weight of a linear layer is called otherwise");
  return weight.name.substr(0, weight.name.size() - kEnd.size());
}

// A recipe's keys have been checked; options that a program sets have not.
void check_options(const LoraOptions& options) {
  const auto refuse = [](const std::string& what) {
    throw UsageError("[adapter] " + what, "LoraOptions has what is allowed");
  };
  if (options.rank < 1) refuse("rank: has to be 1 or more");
  if (!(options.alpha > 0) || !std::isfinite(options.alpha)) refuse("alpha: has to be above 0");
  if (!(options.dropout >= 0 && options.dropout < 1))
    refuse("dropout: has to be from 0 to below 1");
  if (options.match.empty()) refuse("match: no linear layer would get a pair");
}

bool is_plain(const std::string& pattern) {
  return pattern.find_first_of("*?[") == std::string::npos;
}

}  // namespace

// A plain name fits as peft's do: the layer of this name, and those whose names end with it.
bool fits_layer(const std::string& pattern, const std::string& layer) {
  if (!is_plain(pattern)) return ::fnmatch(pattern.c_str(), layer.c_str(), 0) == 0;
  return layer == pattern || layer.ends_with("." + pattern);
}

void refuse_shared_weight(const LoraOptions& options, const std::string& layer) {
  for (const std::string& each : options.match) {
    if (!is_plain(each) || !fits_layer(each, layer)) continue;
    throw UsageError("[adapter] match: " + quote(each, 200) + " names " + quote(layer, 200) +
                         ", whose weight something else in the model has, too",
                     "a pair beside it would change both; leave it out of match");
  }
}

bool LoraTargets::take(const std::string& layer) {
  layers_.push_back(layer);
  bool fits = false;
  for (std::size_t i = 0; i < options_.match.size(); ++i) {
    if (!fits_layer(options_.match[i], layer)) continue;
    fits_[i] = true;
    fits = true;
  }
  if (fits) adapted_.push_back(layer);
  return fits;
}

void LoraTargets::check() const {
  check_options(options_);
  if (layers_.empty()) {
    throw UsageError("[adapter] the model has no linear layer that could have an adapter",
                     "gpt, mlp and exported have some, but an mlp with loss = \"expression\" has "
                     "none; leave out [adapter]");
  }
  for (std::size_t i = 0; i < fits_.size(); ++i) {
    if (fits_[i]) continue;
    throw UsageError(
        "[adapter] match: " + quote(options_.match[i], 200) + " fits no linear layer of the model",
        "linear layers are " + layers_.front() + ", ..., " + layers_.back());
  }
}

// As torch.nn.init.kaiming_uniform_ with a = sqrt(5), of which the gain is 1 / sqrt(3).
ParameterSpec lora_a_spec(const std::string& layer, std::int64_t rank, std::int64_t in) {
  ParameterSpec spec;
  spec.name = layer + std::string(kLoraA);
  spec.shape = {rank, in};
  spec.initializer = Initializer::uniform(1 / std::sqrt(static_cast<double>(in)));
  return spec;
}

ParameterSpec lora_b_spec(const std::string& layer, std::int64_t out, std::int64_t rank) {
  ParameterSpec spec;
  spec.name = layer + std::string(kLoraB);
  spec.shape = {out, rank};
  spec.initializer = Initializer::constant(0);
  return spec;
}

LoraPair::LoraPair(const ParameterSpec& weight, const TensorAxis& axis, const LoraTargets& targets)
    : scale_(targets.options().scale()),
      dropout_(targets.options().dropout),
      stream_(stream_key(targets.seed(), "dropout " + layer_of(weight) + ".lora")),
      a_spec_(lora_a_spec(layer_of(weight), targets.options().rank, weight.shape[1])),
      b_spec_(lora_b_spec(layer_of(weight), weight.shape[0], targets.options().rank)) {
  if (!weight.slice) return;
  const bool cut_by_inputs = weight.slice->dim == 1;
  (cut_by_inputs ? a_spec_ : b_spec_).slice = weight.slice;
  axis.mark_replicated(cut_by_inputs ? b_spec_ : a_spec_);
  if (cut_by_inputs) return;
  b_spec_.partial_over = weight.partial_over;
  if (weight.owned) b_spec_.owned = *weight.owned / weight.shape[1] * b_spec_.shape[1];
}

void LoraPair::declare(std::vector<ParameterSpec>& specs) const {
  specs.push_back(a_spec_);
  specs.push_back(b_spec_);
}

void LoraPair::bind(const Arena& arena) {
  a_ = &arena.parameter(a_spec_.name);
  b_ = &arena.parameter(b_spec_.name);
}

// A mask is of the whole input: a rank that has some of its columns draws all, and takes these.
at::Tensor LoraPair::dropped(const at::Tensor& input, const LoraDraws& draws) const {
  if (dropout_ == 0) return input;
  const ops::RowSlice rows{0, draws.rows_per_sample};
  const ops::DropoutKey key{stream_, draws.step};
  if (!a_spec_.slice) {
    return ops::dropout_rows(input.contiguous(), rows, draws.sample_ids, dropout_, key);
  }
  const at::Tensor ones = at::ones({input.size(0), a_spec_.shape[1]}, input.options());
  const at::Tensor mask = ops::dropout_rows(ones, rows, draws.sample_ids, dropout_, key);
  return input * mask.narrow(1, a_spec_.slice->begin, input.size(1));
}

void LoraPair::add_output_(const at::Tensor& output, const at::Tensor& input,
                           LoraPass* pass) const {
  const at::Tensor in = pass != nullptr ? dropped(input, pass->draws) : input;
  const at::Tensor inner = at::mm(in, a_->working_weight().t());
  output.addmm_(inner, b_->working_weight().t(), 1, scale_);
  if (pass != nullptr) pass->inner = inner;
}

void LoraPair::backward_inner(const at::Tensor& gradient, LoraPass& pass) const {
  pass.inner_gradient = at::mm(gradient, b_->working_weight()).mul_(scale_);
}

void LoraPair::add_input_gradient_(const at::Tensor& input_gradient, const LoraPass& pass) const {
  if (dropout_ == 0) {
    input_gradient.addmm_(pass.inner_gradient, a_->working_weight());
  } else {
    input_gradient.add_(dropped(at::mm(pass.inner_gradient, a_->working_weight()), pass.draws));
  }
}

void LoraPair::add_gradients(const at::Tensor& gradient, const at::Tensor& input,
                             const LoraPass& pass) const {
  if (a_->is_trained()) add_gradient_product(*a_, pass.inner_gradient, dropped(input, pass.draws));
  if (b_->is_trained()) add_gradient_product(*b_, gradient, pass.inner * scale_);
}

}  // namespace troika
