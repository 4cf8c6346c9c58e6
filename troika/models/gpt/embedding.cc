#include <ATen/ATen.h>
#include <troika/base/random.h>
#include <troika/models/gpt/batch.h>
#include <troika/models/gpt/embedding.h>
#include <troika/models/gpt/vocabulary.h>
#include <troika/nn/attention.h>
#include <troika/ops/dropout.h>
#include <troika/ops/embedding.h>

namespace troika {
namespace {

struct EmbeddingState final : UnitState {
  at::Tensor position_ids;  // with learned positions
};

// Ids counted from a rank's first row, and which of them it has.
struct LocalIds {
  at::Tensor ids, held;
};

LocalIds local_ids(const at::Tensor& inputs, const IndexRange& rows) {
  at::Tensor ids = inputs.reshape({-1}) - rows.first;
  at::Tensor held = ids.ge(0).logical_and_(ids.lt(rows.count));
  return {std::move(ids), std::move(held)};
}

}  // namespace

GptEmbedding::GptEmbedding(const GptOptions& options, std::uint64_t seed, const ModelLayout& layout)
    : options_(options),
      axis_(layout.tensor),
      tied_across_stages_(options.tied_embeddings && layout.tied_across_stages),
      rows_(axis_.slice_of(options.vocab_size)),
      dropout_stream_(stream_key(seed, "dropout embedding")) {}

std::vector<ParameterSpec> GptEmbedding::specs() const {
  ParameterSpec tokens = vocabulary_weight(kTokenEmbedding, options_, axis_);
  if (tied_across_stages_) tokens.partial_over.push_back(Axis::kPipeline);
  if (options_.position == Position::kRope) return {tokens};
  ParameterSpec positions;
  positions.name = "model.embed_positions.weight";
  positions.shape = {options_.seq_len, options_.dim};
  positions.initializer = tokens.initializer;
  axis_.mark_replicated(positions);
  return {tokens, positions};
}

void GptEmbedding::bind(const Arena& arena) {
  tokens_ = &arena.parameter(kTokenEmbedding);
  if (options_.position == Position::kLearned) {
    positions_ = &arena.parameter("model.embed_positions.weight");
  }
}

// [slice of the tokens, dim].
at::Tensor GptEmbedding::look_up(const Microbatch& microbatch) const {
  const at::Tensor& table = tokens_->working_weight();
  if (!axis_.split()) return at::index_select(table, 0, input_ids_of(microbatch).reshape({-1}));
  at::Tensor rows;
  if (rows_.count == 0) {
    rows = at::zeros({input_ids_of(microbatch).numel(), options_.dim}, table.options());
  } else {
    const LocalIds local = local_ids(input_ids_of(microbatch), rows_);
    rows = at::index_select(table, 0, local.ids.clamp(0, rows_.count - 1));
    rows.masked_fill_(local.held.logical_not().unsqueeze(1), 0);
  }
  return axis_.reduce_scatter_tokens(rows, {"embedding", "rows", microbatch.pass()});
}

at::Tensor GptEmbedding::position_ids(const Microbatch& microbatch) const {
  const IndexRange tokens = axis_.slice_of(input_ids_of(microbatch).numel());
  return token_positions(input_ids_of(microbatch), document_ids_of(microbatch))
      .narrow(0, tokens.first, tokens.count);
}

at::Tensor GptEmbedding::dropped(const at::Tensor& tensor, const Microbatch& microbatch) const {
  const IndexRange tokens = axis_.slice_of(input_ids_of(microbatch).numel());
  return ops::dropout_rows(tensor, {tokens.first, input_ids_of(microbatch).size(1)},
                           microbatch.sample_ids, options_.dropout,
                           {dropout_stream_, microbatch.step});
}

Activation GptEmbedding::forward(Activation, const Saved& saved,
                                 std::unique_ptr<UnitState>& state) {
  at::Tensor hidden = look_up(saved.microbatch);
  auto own = std::make_unique<EmbeddingState>();
  if (positions_) {
    own->position_ids = position_ids(saved.microbatch);
    hidden.add_(at::index_select(positions_->working_weight(), 0, own->position_ids));
  }
  if (saved.mode == Mode::kTrain) {
    hidden = dropped(hidden, saved.microbatch);
    state = std::move(own);
  }
  return {{std::move(hidden)}};
}

std::vector<FlowSpec> GptEmbedding::outputs(const Microbatch& microbatch) const {
  return {hidden_states(microbatch, axis_, options_)};
}

// `gradient` [tokens, dim]: rows of ids held here are added in the order of the tokens.
void GptEmbedding::add_token_gradients(const Microbatch& microbatch,
                                       const at::Tensor& gradient) const {
  tokens_->claim_zeroed();
  if (!axis_.split()) {
    ops::add_rows_(tokens_->gradient(), input_ids_of(microbatch).reshape({-1}), gradient);
    return;
  }
  const LocalIds local = local_ids(input_ids_of(microbatch), rows_);
  const at::Tensor held = local.held.nonzero().squeeze(1);
  ops::add_rows_(tokens_->gradient(), local.ids.index_select(0, held),
                 gradient.index_select(0, held));
}

Tensors GptEmbedding::backward_input(UnitState& state, const Saved& saved, Tensors gradients) {
  const Microbatch& microbatch = saved.microbatch;
  at::Tensor gradient = dropped(gradients[0], microbatch);
  if (positions_ && positions_->is_trained()) {
    positions_->claim_zeroed();
    ops::add_rows_(positions_->gradient(), static_cast<EmbeddingState&>(state).position_ids,
                   gradient);
  }
  if (!tokens_->is_trained()) return {};
  gradient = axis_.all_gather_tokens(gradient, input_ids_of(microbatch).numel(),
                                     {"embedding", "output gradient", microbatch.pass()});
  add_token_gradients(microbatch, gradient);
  return {};
}

}  // namespace troika
