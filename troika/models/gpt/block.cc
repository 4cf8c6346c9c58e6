#include <ATen/ATen.h>
#include <troika/base/random.h>
#include <troika/models/gpt/block.h>
#include <troika/nn/activation_function.h>
#include <troika/ops/dropout.h>
#include <troika/ops/rotary.h>

#include <cmath>

namespace troika {

// Everything with a gradient of a weight to come keeps the input of that weight; `d_` are gradients
// of outputs, left by backward_input for backward_weight.
struct GptBlock::State final : UnitState {
  AttentionShape shape{};
  Normalization::State attention_norm, feed_forward_norm;
  at::Tensor positions;
  AttentionState attention;
  at::Tensor attention_input, attended;
  at::Tensor feed_forward_input, gate, up, activated;
  at::Tensor d_query, d_key, d_value, d_attended;
  at::Tensor d_gate, d_up, d_down;
};

namespace {

std::string layer_name(std::int64_t layer, const std::string& part) {
  return "model.layers." + std::to_string(layer) + "." + part;
}

Bias bias_of(const ModelRecipe& recipe) {
  return recipe.bias ? Bias::kPresent : Bias::kAbsent;
}

Initializer inner_start() {
  return Initializer::normal(0.02);
}

// Projections that write to the residual stream, of which there are two a layer (GPT-2,
// section 2.3).
Initializer residual_start(const ModelRecipe& recipe) {
  return Initializer::normal(0.02 / std::sqrt(2.0 * static_cast<double>(recipe.layers)));
}

}  // namespace

GptBlock::GptBlock(const ModelRecipe& recipe, std::int64_t layer, std::uint64_t seed)
    : recipe_(recipe),
      attention_dropout_(stream_key(seed, "dropout " + layer_name(layer, "self_attn"))),
      feed_forward_dropout_(stream_key(seed, "dropout " + layer_name(layer, "mlp"))),
      attention_norm_(layer_name(layer, "input_layernorm"), recipe.dim, recipe.norm, recipe.bias,
                      recipe.norm_eps),
      feed_forward_norm_(layer_name(layer, "post_attention_layernorm"), recipe.dim, recipe.norm,
                         recipe.bias, recipe.norm_eps),
      query_(layer_name(layer, "self_attn.q_proj"), recipe.dim, recipe.heads * recipe.head_dim,
             bias_of(recipe), inner_start()),
      key_(layer_name(layer, "self_attn.k_proj"), recipe.dim, recipe.kv_heads * recipe.head_dim,
           bias_of(recipe), inner_start()),
      value_(layer_name(layer, "self_attn.v_proj"), recipe.dim, recipe.kv_heads * recipe.head_dim,
             bias_of(recipe), inner_start()),
      output_(layer_name(layer, "self_attn.o_proj"), recipe.heads * recipe.head_dim, recipe.dim,
              bias_of(recipe), residual_start(recipe)),
      up_(layer_name(layer, "mlp.up_proj"), recipe.dim, recipe.ffn_dim, bias_of(recipe),
          inner_start()),
      down_(layer_name(layer, "mlp.down_proj"), recipe.ffn_dim, recipe.dim, bias_of(recipe),
            residual_start(recipe)) {
  if (recipe.activation == ActivationFunction::kSwiGlu) {
    gate_.emplace(layer_name(layer, "mlp.gate_proj"), recipe.dim, recipe.ffn_dim, bias_of(recipe),
                  inner_start());
  }
}

std::vector<ParameterSpec> GptBlock::specs() const {
  std::vector<ParameterSpec> specs;
  attention_norm_.declare(specs);
  for (const Linear* linear : {&query_, &key_, &value_, &output_}) linear->declare(specs);
  feed_forward_norm_.declare(specs);
  if (gate_) gate_->declare(specs);
  up_.declare(specs);
  down_.declare(specs);
  return specs;
}

void GptBlock::bind(const Arena& arena) {
  attention_norm_.bind(arena);
  for (Linear* linear : {&query_, &key_, &value_, &output_, &up_, &down_}) linear->bind(arena);
  feed_forward_norm_.bind(arena);
  if (gate_) gate_->bind(arena);
  if (recipe_.position == Position::kRope) {
    rotary_ = ops::rotary_table(recipe_.seq_len, recipe_.head_dim, recipe_.rope_theta,
                                arena.types().master);
  }
}

at::Tensor GptBlock::dropped(const at::Tensor& tensor, const Saved& saved,
                             std::uint64_t stream) const {
  if (saved.mode == Mode::kEvaluate) return tensor;
  return ops::dropout(tensor, saved.microbatch.sample_ids, recipe_.dropout,
                      {stream, saved.microbatch.step});
}

Activation GptBlock::forward(Activation input, const Saved& saved,
                             std::unique_ptr<UnitState>& state) {
  auto own = std::make_unique<State>();
  const at::Tensor attended = attend(input.hidden, saved.microbatch, *own);
  const at::Tensor middle = input.hidden + dropped(attended, saved, attention_dropout_);
  const at::Tensor fed = feed_forward(middle, *own);
  at::Tensor hidden = middle + dropped(fed, saved, feed_forward_dropout_);
  if (saved.mode == Mode::kTrain) state = std::move(own);
  return {std::move(hidden)};
}

at::Tensor GptBlock::attend(const at::Tensor& hidden, const Microbatch& microbatch,
                            State& state) const {
  const std::int64_t samples = microbatch.inputs.size(0), length = microbatch.inputs.size(1);
  state.shape = {samples, length, recipe_.heads, recipe_.kv_heads, recipe_.head_dim};
  state.attention_input = attention_norm_.forward(hidden, state.attention_norm);
  const at::Tensor query = query_.forward(state.attention_input);
  const at::Tensor key = key_.forward(state.attention_input);
  const at::Tensor value = value_.forward(state.attention_input);
  if (rotary_.defined()) {
    state.positions = token_positions(samples, length, microbatch.document_ids);
    ops::rotate_(query, state.positions, rotary_, ops::Rotation::kForward);
    ops::rotate_(key, state.positions, rotary_, ops::Rotation::kForward);
  }
  const at::Tensor mask = microbatch.document_ids.defined()
                              ? document_mask(microbatch.document_ids, query.scalar_type())
                              : at::Tensor();
  state.attended = attention(query, key, value, state.shape, mask, state.attention);
  return output_.forward(state.attended);
}

at::Tensor GptBlock::feed_forward(const at::Tensor& hidden, State& state) const {
  state.feed_forward_input = feed_forward_norm_.forward(hidden, state.feed_forward_norm);
  state.up = up_.forward(state.feed_forward_input);
  if (gate_) {
    state.gate = gate_->forward(state.feed_forward_input);
    state.activated = swiglu(state.gate, state.up);
  } else {
    state.activated = apply(recipe_.activation, state.up);
  }
  return down_.forward(state.activated);
}

at::Tensor GptBlock::backward_input(UnitState& state, const Saved& saved, at::Tensor gradient) {
  auto& own = static_cast<State&>(state);
  const at::Tensor middle =
      gradient + feed_forward_backward(own, dropped(gradient, saved, feed_forward_dropout_));
  return middle + attend_backward(own, dropped(middle, saved, attention_dropout_));
}

at::Tensor GptBlock::feed_forward_backward(State& state, const at::Tensor& gradient) const {
  state.d_down = gradient;
  const at::Tensor activated = down_.backward_input(gradient);
  at::Tensor input;
  if (gate_) {
    auto [gate, up] = swiglu_backward(activated, state.gate, state.up);
    state.d_gate = std::move(gate);
    state.d_up = std::move(up);
    input = up_.backward_input(state.d_up).add_(gate_->backward_input(state.d_gate));
  } else {
    state.d_up = apply_backward(recipe_.activation, activated, state.up, state.activated);
    input = up_.backward_input(state.d_up);
  }
  return feed_forward_norm_.backward(state.feed_forward_norm, input);
}

at::Tensor GptBlock::attend_backward(State& state, const at::Tensor& gradient) const {
  state.d_attended = gradient;
  auto [query, key, value] =
      attention_backward(state.attention, state.shape, output_.backward_input(gradient));
  if (rotary_.defined()) {
    ops::rotate_(query, state.positions, rotary_, ops::Rotation::kBackward);
    ops::rotate_(key, state.positions, rotary_, ops::Rotation::kBackward);
  }
  at::Tensor input = query_.backward_input(query);
  input.add_(key_.backward_input(key)).add_(value_.backward_input(value));
  state.d_query = std::move(query);
  state.d_key = std::move(key);
  state.d_value = std::move(value);
  return attention_norm_.backward(state.attention_norm, input);
}

void GptBlock::backward_weight(UnitState& state) {
  auto& own = static_cast<State&>(state);
  down_.backward_weight(own.d_down, own.activated);
  up_.backward_weight(own.d_up, own.feed_forward_input);
  if (gate_) gate_->backward_weight(own.d_gate, own.feed_forward_input);
  output_.backward_weight(own.d_attended, own.attended);
  query_.backward_weight(own.d_query, own.attention_input);
  key_.backward_weight(own.d_key, own.attention_input);
  value_.backward_weight(own.d_value, own.attention_input);
}

}  // namespace troika
