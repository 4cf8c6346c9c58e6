#include <ATen/ATen.h>
#include <troika/base/random.h>
#include <troika/models/gpt/embedding.h>
#include <troika/nn/attention.h>
#include <troika/ops/dropout.h>
#include <troika/ops/embedding.h>

namespace troika {
namespace {

struct EmbeddingState final : UnitState {
  at::Tensor position_ids;  // with learned positions
};

}  // namespace

GptEmbedding::GptEmbedding(const ModelRecipe& recipe, std::uint64_t seed)
    : recipe_(recipe), dropout_stream_(stream_key(seed, "dropout embedding")) {}

std::vector<ParameterSpec> GptEmbedding::specs() const {
  ParameterSpec tokens;
  tokens.name = "model.embed_tokens.weight";
  tokens.shape = {recipe_.vocab_size, recipe_.dim};
  tokens.initializer = Initializer::normal(0.02);
  if (recipe_.position == Position::kRope) return {tokens};
  ParameterSpec positions = tokens;
  positions.name = "model.embed_positions.weight";
  positions.shape = {recipe_.seq_len, recipe_.dim};
  return {tokens, positions};
}

void GptEmbedding::bind(const Arena& arena) {
  tokens_ = &arena.parameter("model.embed_tokens.weight");
  if (recipe_.position == Position::kLearned) {
    positions_ = &arena.parameter("model.embed_positions.weight");
  }
}

Activation GptEmbedding::forward(Activation, const Saved& saved,
                                 std::unique_ptr<UnitState>& state) {
  const Microbatch& microbatch = saved.microbatch;
  at::Tensor hidden = at::index_select(tokens_->value(), 0, microbatch.inputs.reshape({-1}));
  auto own = std::make_unique<EmbeddingState>();
  if (positions_) {
    own->position_ids = token_positions(microbatch.inputs.size(0), microbatch.inputs.size(1),
                                        microbatch.document_ids);
    hidden.add_(at::index_select(positions_->value(), 0, own->position_ids));
  }
  if (saved.mode == Mode::kTrain) {
    hidden = ops::dropout(hidden, microbatch.sample_ids, recipe_.dropout,
                          {dropout_stream_, microbatch.step});
    state = std::move(own);
  }
  return {std::move(hidden)};
}

at::Tensor GptEmbedding::backward_input(UnitState& state, const Saved& saved, at::Tensor gradient) {
  const Microbatch& microbatch = saved.microbatch;
  gradient = ops::dropout(gradient, microbatch.sample_ids, recipe_.dropout,
                          {dropout_stream_, microbatch.step});
  tokens_->claim_zeroed();
  ops::add_rows_(tokens_->gradient(), microbatch.inputs.reshape({-1}), gradient);
  if (positions_) {
    positions_->claim_zeroed();
    ops::add_rows_(positions_->gradient(), static_cast<EmbeddingState&>(state).position_ids,
                   gradient);
  }
  return {};
}

}  // namespace troika
