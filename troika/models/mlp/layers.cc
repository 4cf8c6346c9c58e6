#include <ATen/ATen.h>
#include <troika/models/mlp/layers.h>
#include <troika/nn/activation_function.h>

namespace troika {
namespace {

struct LayerState final : UnitState {
  at::Tensor input, before, after;  // of the linear layer; before and after the non-linearity
  at::Tensor gradient;              // of the linear layer's output
  std::optional<LoraPass> pass;     // in training

  [[nodiscard]] LoraPass* lora() { return pass ? &*pass : nullptr; }
};

std::unique_ptr<LayerState> state_of(const Saved& saved) {
  auto state = std::make_unique<LayerState>();
  const Microbatch& microbatch = saved.microbatch;
  if (saved.mode == Mode::kTrain) {
    state->pass = {.draws = {1, microbatch.sample_ids, microbatch.step}};
  }
  return state;
}

Linear make_linear(std::int64_t index, std::int64_t in, std::int64_t out) {
  const Initializer start = mlp_start(in);
  return {"layers." + std::to_string(index), in, out, Bias::kPresent, start, start};
}

std::vector<ParameterSpec> declare(const Linear& linear) {
  std::vector<ParameterSpec> specs;
  linear.declare(specs);
  return specs;
}

// The first layer reads the features, in the type that the weights are in.
at::Tensor input_of(bool first, const Tensors& input, const Microbatch& microbatch,
                    at::ScalarType type) {
  return first ? microbatch.tensors[0].to(type) : input[0];
}

}  // namespace

MlpHiddenLayer::MlpHiddenLayer(std::int64_t index, std::int64_t in, std::int64_t out,
                               ActivationFunction activation)
    : first_(index == 0),
      in_(in),
      out_(out),
      activation_(activation),
      linear_(make_linear(index, in, out)) {}

std::vector<ParameterSpec> MlpHiddenLayer::specs() const {
  return declare(linear_);
}

Activation MlpHiddenLayer::forward(Activation input, const Saved& saved,
                                   std::unique_ptr<UnitState>& state) {
  auto own = state_of(saved);
  own->input = input_of(first_, input.tensors, saved.microbatch, linear_.working_type());
  own->before = linear_.forward(own->input, own->lora());
  own->after = apply(activation_, own->before);
  at::Tensor hidden = own->after;
  if (saved.mode == Mode::kTrain) state = std::move(own);
  return {{std::move(hidden)}};
}

Tensors MlpHiddenLayer::backward_input(UnitState& state, const Saved& saved, Tensors gradients) {
  auto& own = static_cast<LayerState&>(state);
  own.gradient = apply_backward(activation_, gradients[0], own.before, own.after);
  if (first_ || saved.wanted == Wanted::kWeightGradients) {
    linear_.prepare_weight(own.gradient, *own.lora());
    return {};
  }
  return {linear_.backward_input(own.gradient, own.lora())};
}

void MlpHiddenLayer::backward_weight(UnitState& state) {
  auto& own = static_cast<LayerState&>(state);
  linear_.backward_weight(own.gradient, own.input, own.lora());
}

std::optional<Tensors> MlpHiddenLayer::differentiable(const Tensors& in,
                                                      const Microbatch& microbatch) {
  const at::Tensor input = input_of(first_, in, microbatch, linear_.working_type());
  return Tensors{apply(activation_, linear_.forward(input))};
}

MlpLossLayer::MlpLossLayer(std::int64_t index, std::int64_t in, std::int64_t out,
                           std::shared_ptr<const Loss> loss)
    : first_(index == 0), in_(in), loss_(std::move(loss)), linear_(make_linear(index, in, out)) {}

std::vector<ParameterSpec> MlpLossLayer::specs() const {
  return declare(linear_);
}

Activation MlpLossLayer::forward(Activation input, const Saved& saved,
                                 std::unique_ptr<UnitState>& state) {
  auto own = state_of(saved);
  own->input = input_of(first_, input.tensors, saved.microbatch, linear_.working_type());
  const at::Tensor output = linear_.forward(own->input, own->lora()).to(linear_.master_type());
  Activation result;
  if (saved.wants_predictions) result.tensors = {output.clone()};
  result.loss =
      loss_->with_gradient_(output, LossTargets::of(saved.microbatch, "targets"), saved.loss_scale);
  result.loss.weigh_equally(saved.microbatch.valid);
  own->gradient = output.to(linear_.working_type());
  if (saved.mode == Mode::kTrain) state = std::move(own);
  return result;
}

Tensors MlpLossLayer::backward_input(UnitState& state, const Saved& saved, Tensors) {
  auto& own = static_cast<LayerState&>(state);
  if (first_ || saved.wanted == Wanted::kWeightGradients) {
    linear_.prepare_weight(own.gradient, *own.lora());
    return {};
  }
  return {linear_.backward_input(own.gradient, own.lora())};
}

void MlpLossLayer::backward_weight(UnitState& state) {
  auto& own = static_cast<LayerState&>(state);
  linear_.backward_weight(own.gradient, own.input, own.lora());
}

std::optional<Tensors> MlpLossLayer::differentiable(const Tensors& in,
                                                    const Microbatch& microbatch) {
  const at::Tensor input = input_of(first_, in, microbatch, linear_.working_type());
  return Tensors{linear_.forward(input).to(linear_.master_type())};
}

}  // namespace troika
