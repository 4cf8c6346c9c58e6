#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/models/gpt/head.h>
#include <troika/models/gpt/vocabulary.h>

namespace troika {
namespace {

struct HeadState final : UnitState {
  Normalization::State norm;
  at::Tensor gradient;  // of the norm's output
};

}  // namespace

GptHead::GptHead(const GptOptions& options, const ModelLayout& layout)
    : options_(options),
      axis_(layout.tensor),
      chunks_(layout.on_device ? LogitChunks::kOnDevice : LogitChunks::kOnHost),
      holds_tied_replica_(options.tied_embeddings && layout.tied_across_stages),
      norm_("model.norm", options.dim, options.norm, options.bias, options.norm_eps, axis_) {}

std::vector<ParameterSpec> GptHead::specs() const {
  std::vector<ParameterSpec> specs;
  norm_.declare(specs);
  if (holds_tied_replica_) {
    ParameterSpec replica = vocabulary_weight(kTokenEmbedding, options_, axis_);
    replica.tied_replica = true;
    replica.replica_name = kOutputWeight;
    replica.partial_over.push_back(Axis::kPipeline);
    specs.push_back(std::move(replica));
    return specs;
  }
  ParameterSpec output = vocabulary_weight(kOutputWeight, options_, axis_);
  if (options_.tied_embeddings) output.tied_to = kTokenEmbedding;
  specs.push_back(std::move(output));
  return specs;
}

void GptHead::bind(const Arena& arena) {
  norm_.bind(arena);
  output_ = &arena.parameter(holds_tied_replica_ ? kTokenEmbedding : kOutputWeight);
}

// The norm lies between the logits and the units below.
InputGradient GptHead::input_gradient_of(const Saved& saved) const {
  const bool is_wanted = saved.wanted == Wanted::kInputGradient || norm_.is_trained();
  return is_wanted ? InputGradient::kWanted : InputGradient::kUnused;
}

HeadLoss GptHead::loss_of(const at::Tensor& normalised, const Saved& saved) const {
  if (axis_.split()) return split_loss_of(normalised, saved);
  const at::Tensor targets = targets_of(saved.microbatch).reshape({-1});
  if (!saved.keeps_state())
    return evaluate_head(normalised, output_->working_weight(), targets, chunks_);
  return differentiate_head(normalised, *output_, targets, saved.loss_scale, chunks_,
                            input_gradient_of(saved));
}

HeadLoss GptHead::split_loss_of(const at::Tensor& normalised, const Saved& saved) const {
  const Pass pass = saved.microbatch.pass();
  const at::Tensor targets = targets_of(saved.microbatch).reshape({-1});
  const VocabularyCut cut{axis_, options_.vocab_size, pass, chunks_};
  const at::Tensor input =
      axis_.all_gather_tokens(normalised, targets.numel(), {"head", "input", pass});
  if (!saved.keeps_state()) return evaluate_split_head(input, *output_, targets, cut);
  HeadLoss loss = differentiate_split_head(input, *output_, targets, saved.loss_scale, cut,
                                           input_gradient_of(saved));
  if (loss.input_gradient.defined()) {
    loss.input_gradient =
        axis_.reduce_scatter_tokens(loss.input_gradient, {"head", "input gradient", pass});
  }
  return loss;
}

Activation GptHead::forward(Activation input, const Saved& saved,
                            std::unique_ptr<UnitState>& state) {
  auto own = std::make_unique<HeadState>();
  const at::Tensor normalised = norm_.forward(input.tensors[0], own->norm);
  HeadLoss loss = loss_of(normalised, saved);
  if (saved.keeps_state()) {
    own->gradient = std::move(loss.input_gradient);
    state = std::move(own);
  }
  Activation result;
  result.loss.sum = loss.sum;
  result.loss.weigh_equally(saved.microbatch.valid);
  return result;
}

Tensors GptHead::backward_input(UnitState& state, const Saved&, Tensors) {
  const auto& own = static_cast<HeadState&>(state);
  if (!own.gradient.defined()) return {};
  return {norm_.backward(own.norm, own.gradient)};
}

at::Tensor GptHead::logits(const at::Tensor& hidden) const {
  check(!axis_.split(), "whole logits of a split vocabulary");
  Normalization::State unused;
  return at::mm(norm_.forward(hidden, unused), output_->working_weight().t())
      .to(output_->master_type());
}

}  // namespace troika
