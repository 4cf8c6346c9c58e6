#include <ATen/ATen.h>
#include <troika/base/random.h>
#include <troika/models/gpt/batch.h>
#include <troika/models/gpt/block.h>
#include <troika/nn/activation_function.h>
#include <troika/ops/dropout.h>
#include <troika/ops/rotary.h>
#include <troika/ops/swiglu.h>

#include <cmath>
#include <utility>

namespace troika {

// What enters core attention: heads are normalised and positions turned in already. Heads are those
// on this rank.
struct GptBlock::AttentionInputs {
  at::Tensor query;       // [tokens, heads x head_dim]
  at::Tensor key, value;  // [tokens, kv_heads x head_dim]
};

// Everything with a gradient of a weight to come keeps the input of that weight, or this rank's
// slice of it; `d_` are gradients of outputs, left by backward_input for backward_weight, those of
// attended and down for all tokens. What the backward pass has used is let go at once.
struct GptBlock::State final : UnitState {
  Pass pass = {};
  std::int64_t tokens = 0;  // of the microbatch, on all ranks together
  AttentionShape shape;
  Normalization::State attention_norm, feed_forward_norm;
  Normalization::State query_norm, key_norm;  // where heads are normalised
  at::Tensor positions;
  AttentionInputs attention_inputs;  // where core attention is to run again
  AttentionState attention;
  at::Tensor attention_input, attended;
  at::Tensor feed_forward_input, gate, up, activated;
  at::Tensor d_query, d_key, d_value, d_attended;
  at::Tensor d_gate, d_up, d_down;
  // What adapters keep, in training.
  struct Pairs {
    LoraPass query, key, value, output, gate, up, down;
  };
  std::optional<Pairs> pairs;
  [[nodiscard]] LoraPass* pair(LoraPass Pairs::*layer) {
    return pairs ? &((*pairs).*layer) : nullptr;
  }
};

namespace {

std::string layer_name(std::int64_t layer, const std::string& part) {
  return "model.layers." + std::to_string(layer) + "." + part;
}

Initializer inner_start() {
  return Initializer::normal(0.02);
}

// Projections that write to the residual stream, of which there are two a layer (GPT-2,
// section 2.3).
Initializer residual_start(const GptOptions& options) {
  return Initializer::normal(0.02 / std::sqrt(2.0 * static_cast<double>(options.layers)));
}

IndexRange scaled(const IndexRange& slice, std::int64_t factor) {
  return {slice.first * factor, slice.count * factor};
}

// Makes the linear layers of a block, each with its cut.
class Projections {
 public:
  Projections(const GptOptions& options, std::int64_t layer, const TensorAxis& axis,
              const HeadCut& heads)
      : options_(options), layer_(layer), axis_(axis), heads_(heads) {}

  [[nodiscard]] Linear query() const {
    return into("self_attn.q_proj", options_.heads * options_.head_dim, attention_bias(),
                LinearCut::columns(axis_, scaled(heads_.query, options_.head_dim)));
  }
  [[nodiscard]] Linear key_or_value(const std::string& part) const {
    const IndexRange held = scaled(heads_.key_value, options_.head_dim);
    return into(part, options_.kv_heads * options_.head_dim, attention_bias(),
                heads_.overlapping ? LinearCut::overlapping_columns(
                                         axis_, held, heads_.counted * options_.head_dim)
                                   : LinearCut::columns(axis_, held));
  }
  [[nodiscard]] Linear attention_output() const {
    return out_of("self_attn.o_proj", options_.heads * options_.head_dim,
                  scaled(heads_.query, options_.head_dim));
  }
  [[nodiscard]] Linear inner(const std::string& part) const {
    return into(part, options_.ffn_dim, bias(),
                LinearCut::columns(axis_, axis_.slice_of(options_.ffn_dim)));
  }
  [[nodiscard]] Linear feed_forward_output() const {
    return out_of("mlp.down_proj", options_.ffn_dim, axis_.slice_of(options_.ffn_dim));
  }

 private:
  [[nodiscard]] Bias bias() const { return options_.bias ? Bias::kPresent : Bias::kAbsent; }
  [[nodiscard]] Bias attention_bias() const { return options_.qkv_bias ? Bias::kPresent : bias(); }
  [[nodiscard]] Linear into(const std::string& part, std::int64_t width, Bias bias,
                            const LinearCut& cut) const {
    return {layer_name(layer_, part), options_.dim, width, bias, inner_start(),
            Initializer::constant(0), cut};
  }
  [[nodiscard]] Linear out_of(const std::string& part, std::int64_t width,
                              const IndexRange& held) const {
    return {layer_name(layer_, part),
            width,
            options_.dim,
            bias(),
            residual_start(options_),
            Initializer::constant(0),
            LinearCut::rows(axis_, held)};
  }

  const GptOptions& options_;
  std::int64_t layer_;
  const TensorAxis& axis_;
  const HeadCut& heads_;
};

Normalization norm_of(const GptOptions& options, std::int64_t layer, const std::string& part,
                      const TensorAxis& axis) {
  return {layer_name(layer, part), options.dim, options.norm, options.bias, options.norm_eps, axis};
}

// The heads of all ranks share one weight. Each rank adds the gradients over its own queries, also
// of a key head that its neighbour holds as well, so they are partial sums like those of the norms
// of token slices.
Normalization norm_of_heads(const GptOptions& options, std::int64_t layer, const std::string& part,
                            const TensorAxis& axis) {
  return {layer_name(layer, part),
          options.head_dim,
          options.norm,
          options.bias,
          options.norm_eps,
          axis};
}

ops::RotaryAngles angles_of(const GptOptions& options) {
  return {options.rope_theta,           options.rope_scaling,          options.rope_factor,
          options.rope_low_freq_factor, options.rope_high_freq_factor, options.rope_original_len};
}

}  // namespace

GptBlock::GptBlock(const GptOptions& options, std::int64_t layer, std::uint64_t seed,
                   const ModelLayout& layout, std::shared_ptr<RotaryPositions> positions)
    : options_(options),
      axis_(layout.tensor),
      heads_(cut_heads(options.heads, options.kv_heads, axis_.rank(), axis_.size())),
      recompute_attention_(layout.checkpoint == ActivationCheckpoint::kSelective),
      label_("layer " + std::to_string(layer)),
      attention_dropout_(stream_key(seed, "dropout " + layer_name(layer, "self_attn"))),
      feed_forward_dropout_(stream_key(seed, "dropout " + layer_name(layer, "mlp"))),
      attention_norm_(norm_of(options, layer, "input_layernorm", axis_)),
      feed_forward_norm_(norm_of(options, layer, "post_attention_layernorm", axis_)),
      query_(Projections(options, layer, axis_, heads_).query()),
      key_(Projections(options, layer, axis_, heads_).key_or_value("self_attn.k_proj")),
      value_(Projections(options, layer, axis_, heads_).key_or_value("self_attn.v_proj")),
      output_(Projections(options, layer, axis_, heads_).attention_output()),
      up_(Projections(options, layer, axis_, heads_).inner("mlp.up_proj")),
      down_(Projections(options, layer, axis_, heads_).feed_forward_output()),
      shared_positions_(std::move(positions)) {
  if (options.activation == ActivationFunction::kSwiGlu) {
    gate_ = Projections(options, layer, axis_, heads_).inner("mlp.gate_proj");
  }
  if (options.qk_norm) {
    query_norm_ = norm_of_heads(options, layer, "self_attn.q_norm", axis_);
    key_norm_ = norm_of_heads(options, layer, "self_attn.k_norm", axis_);
  }
}

std::vector<ParameterSpec> GptBlock::specs() const {
  std::vector<ParameterSpec> specs;
  attention_norm_.declare(specs);
  for (const Linear* linear : {&query_, &key_, &value_, &output_}) linear->declare(specs);
  for (const auto* norm : {&query_norm_, &key_norm_}) {
    if (*norm) (*norm)->declare(specs);
  }
  feed_forward_norm_.declare(specs);
  if (gate_) gate_->declare(specs);
  up_.declare(specs);
  down_.declare(specs);
  return specs;
}

void GptBlock::adapt(LoraTargets& targets) {
  for (Linear* linear : {&query_, &key_, &value_, &output_}) linear->adapt(targets);
  if (gate_) gate_->adapt(targets);
  up_.adapt(targets);
  down_.adapt(targets);
}

void GptBlock::bind(const Arena& arena) {
  attention_norm_.bind(arena);
  for (Linear* linear : {&query_, &key_, &value_, &output_, &up_, &down_}) linear->bind(arena);
  for (auto* norm : {&query_norm_, &key_norm_}) {
    if (*norm) (*norm)->bind(arena);
  }
  feed_forward_norm_.bind(arena);
  if (gate_) gate_->bind(arena);
  if (options_.position != Position::kRope) return;
  const auto options = at::TensorOptions(arena.types().master).device(arena.device());
  at::Tensor& table = shared_positions_->table;
  const bool fits = table.defined() && table.scalar_type() == arena.types().master &&
                    table.device() == arena.device();
  if (!fits) {
    table = ops::rotary_table(options_.seq_len, options_.head_dim, angles_of(options_), options);
  }
  rotary_ = table;
}

std::vector<FlowSpec> GptBlock::outputs(const Microbatch& microbatch) const {
  return {hidden_states(microbatch, axis_, options_)};
}

at::Tensor GptBlock::all_gather_slices(const at::Tensor& slice, const State& state,
                                       std::string_view what) const {
  return axis_.all_gather_tokens(slice, state.tokens, {label_, what, state.pass});
}

at::Tensor GptBlock::reduce_scatter_slices(const at::Tensor& partial, const State& state,
                                           std::string_view what) const {
  return axis_.reduce_scatter_tokens(partial, {label_, what, state.pass});
}

at::Tensor GptBlock::dropped(const at::Tensor& tensor, const Saved& saved,
                             std::uint64_t stream) const {
  if (saved.mode == Mode::kEvaluate) return tensor;
  const Microbatch& microbatch = saved.microbatch;
  const IndexRange tokens = axis_.slice_of(input_ids_of(microbatch).numel());
  return ops::dropout_rows(tensor, {tokens.first, input_ids_of(microbatch).size(1)},
                           microbatch.sample_ids, options_.dropout, {stream, microbatch.step});
}

Activation GptBlock::forward(Activation input, const Saved& saved,
                             std::unique_ptr<UnitState>& state) {
  auto own = std::make_unique<State>();
  own->pass = saved.microbatch.pass();
  own->tokens = input_ids_of(saved.microbatch).numel();
  if (saved.mode == Mode::kTrain) {
    const LoraPass pass{{input_ids_of(saved.microbatch).size(1), saved.microbatch.sample_ids,
                         saved.microbatch.step}};
    own->pairs = {pass, pass, pass, pass, pass, pass, pass};
  }
  const at::Tensor& before = input.tensors[0];
  const at::Tensor attended = attend(before, saved, *own);
  const at::Tensor middle = before + dropped(attended, saved, attention_dropout_);
  const at::Tensor fed = feed_forward(middle, *own);
  at::Tensor hidden = middle + dropped(fed, saved, feed_forward_dropout_);
  if (saved.mode == Mode::kTrain) state = std::move(own);
  return {{std::move(hidden)}};
}

at::Tensor GptBlock::attend(const at::Tensor& hidden, const Saved& saved, State& state) const {
  const at::Tensor& ids = input_ids_of(saved.microbatch);
  state.shape = {ids.size(0),       ids.size(1), heads_.query.count, heads_.key_value.count,
                 options_.head_dim, heads_.reads};
  state.attention_input = attention_norm_.forward(hidden, state.attention_norm);
  const AttentionInputs inputs = project(
      all_gather_slices(state.attention_input, state, "attention input"), saved.microbatch, state);
  core_attention(inputs, saved.microbatch, state);
  const at::Tensor partial = output_.forward(state.attended, state.pair(&State::Pairs::output));
  if (recompute_attention_) {
    state.attention_inputs = inputs;
    state.attention = {};
    state.attended.reset();
  }
  at::Tensor output = reduce_scatter_slices(partial, state, "attention output");
  output_.add_bias_(output);
  return output;
}

GptBlock::AttentionInputs GptBlock::project(const at::Tensor& tokens, const Microbatch& microbatch,
                                            State& state) const {
  AttentionInputs inputs{query_.forward(tokens, state.pair(&State::Pairs::query)),
                         key_.forward(tokens, state.pair(&State::Pairs::key)),
                         value_.forward(tokens, state.pair(&State::Pairs::value))};
  if (query_norm_) {
    inputs.query = normalise_heads(*query_norm_, inputs.query, state.query_norm);
    inputs.key = normalise_heads(*key_norm_, inputs.key, state.key_norm);
  }
  if (rotary_.defined()) {
    state.positions = token_positions(input_ids_of(microbatch), document_ids_of(microbatch));
    ops::rotate_(inputs.query, state.positions, rotary_, ops::Rotation::kForward);
    ops::rotate_(inputs.key, state.positions, rotary_, ops::Rotation::kForward);
  }
  return inputs;
}

at::Tensor GptBlock::normalise_heads(const Normalization& norm, const at::Tensor& heads,
                                     Normalization::State& state) const {
  return norm.forward(heads.view({-1, options_.head_dim}), state).view(heads.sizes());
}

at::Tensor GptBlock::normalise_heads_backward(const Normalization& norm, const at::Tensor& gradient,
                                              Normalization::State& state) const {
  at::Tensor heads =
      norm.backward(state, gradient.view({-1, options_.head_dim})).view(gradient.sizes());
  state = {};
  return heads;
}

void GptBlock::core_attention(const AttentionInputs& inputs, const Microbatch& microbatch,
                              State& state) const {
  const at::Tensor documents = document_ids_of(microbatch);
  const at::Tensor mask =
      documents.defined() ? document_mask(documents, inputs.query.scalar_type()) : at::Tensor();
  state.attended =
      attention(inputs.query, inputs.key, inputs.value, state.shape, mask, state.attention);
}

at::Tensor GptBlock::feed_forward(const at::Tensor& hidden, State& state) const {
  state.feed_forward_input = feed_forward_norm_.forward(hidden, state.feed_forward_norm);
  const at::Tensor tokens =
      all_gather_slices(state.feed_forward_input, state, "feed-forward input");
  state.up = up_.forward(tokens, state.pair(&State::Pairs::up));
  if (gate_) {
    state.gate = gate_->forward(tokens, state.pair(&State::Pairs::gate));
    state.activated = ops::swiglu(state.gate, state.up);
  } else {
    state.activated = apply(options_.activation, state.up);
  }
  at::Tensor output =
      reduce_scatter_slices(down_.forward(state.activated, state.pair(&State::Pairs::down)), state,
                            "feed-forward output");
  down_.add_bias_(output);
  return output;
}

Tensors GptBlock::backward_input(UnitState& state, const Saved& saved, Tensors gradients) {
  auto& own = static_cast<State&>(state);
  const at::Tensor& gradient = gradients[0];
  const at::Tensor middle =
      gradient + feed_forward_backward(own, dropped(gradient, saved, feed_forward_dropout_));
  return {middle + attend_backward(own, saved, dropped(middle, saved, attention_dropout_))};
}

at::Tensor GptBlock::feed_forward_backward(State& state, const at::Tensor& gradient) const {
  down_.add_bias_gradient(gradient);
  state.d_down = all_gather_slices(gradient, state, "feed-forward output gradient");
  const at::Tensor activated = down_.backward_input(state.d_down, state.pair(&State::Pairs::down));
  at::Tensor input;
  if (gate_) {
    auto [gate, up] = ops::swiglu_backward(activated, state.gate, state.up);
    state.d_gate = std::move(gate);
    state.d_up = std::move(up);
    input = up_.backward_input(state.d_up, state.pair(&State::Pairs::up))
                .add_(gate_->backward_input(state.d_gate, state.pair(&State::Pairs::gate)));
  } else {
    state.d_up = apply_backward(options_.activation, activated, state.up, state.activated);
    input = up_.backward_input(state.d_up, state.pair(&State::Pairs::up));
  }
  state.gate.reset();
  state.up.reset();
  input = feed_forward_norm_.backward(
      state.feed_forward_norm, reduce_scatter_slices(input, state, "feed-forward input gradient"));
  state.feed_forward_norm = {};
  return input;
}

at::Tensor GptBlock::attend_backward(State& state, const Saved& saved,
                                     const at::Tensor& gradient) const {
  if (recompute_attention_) core_attention(state.attention_inputs, saved.microbatch, state);
  state.attention_inputs = {};
  output_.add_bias_gradient(gradient);
  state.d_attended = all_gather_slices(gradient, state, "attention output gradient");
  auto [query, key, value] = attention_backward(
      state.attention, state.shape,
      output_.backward_input(state.d_attended, state.pair(&State::Pairs::output)));
  state.attention = {};
  if (rotary_.defined()) {
    ops::rotate_(query, state.positions, rotary_, ops::Rotation::kBackward);
    ops::rotate_(key, state.positions, rotary_, ops::Rotation::kBackward);
    state.positions.reset();
  }
  if (query_norm_) {
    query = normalise_heads_backward(*query_norm_, query, state.query_norm);
    key = normalise_heads_backward(*key_norm_, key, state.key_norm);
  }
  at::Tensor input = query_.backward_input(query, state.pair(&State::Pairs::query));
  input.add_(key_.backward_input(key, state.pair(&State::Pairs::key)))
      .add_(value_.backward_input(value, state.pair(&State::Pairs::value)));
  state.d_query = std::move(query);
  state.d_key = std::move(key);
  state.d_value = std::move(value);
  input = attention_norm_.backward(state.attention_norm,
                                   reduce_scatter_slices(input, state, "attention input gradient"));
  state.attention_norm = {};
  return input;
}

void GptBlock::backward_weight(UnitState& state) {
  auto& own = static_cast<State&>(state);
  down_.backward_weight(own.d_down, own.activated, own.pair(&State::Pairs::down));
  if (up_.is_trained() || (gate_ && gate_->is_trained())) {
    const at::Tensor feed_forward_input =
        all_gather_slices(own.feed_forward_input, own, "feed-forward input again");
    up_.backward_weight(own.d_up, feed_forward_input, own.pair(&State::Pairs::up));
    if (gate_)
      gate_->backward_weight(own.d_gate, feed_forward_input, own.pair(&State::Pairs::gate));
  }
  output_.backward_weight(own.d_attended, own.attended, own.pair(&State::Pairs::output));
  if (!query_.is_trained() && !key_.is_trained() && !value_.is_trained()) return;
  const at::Tensor attention_input =
      all_gather_slices(own.attention_input, own, "attention input again");
  query_.backward_weight(own.d_query, attention_input, own.pair(&State::Pairs::query));
  key_.backward_weight(own.d_key, attention_input, own.pair(&State::Pairs::key));
  value_.backward_weight(own.d_value, attention_input, own.pair(&State::Pairs::value));
}

}  // namespace troika
