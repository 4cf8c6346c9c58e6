#include <ATen/ATen.h>
#include <troika/models/gpt/head.h>
#include <troika/nn/loss_head.h>

namespace troika {
namespace {

struct HeadState final : UnitState {
  Normalization::State norm;
  at::Tensor gradient;  // of the norm's output
};

}  // namespace

GptHead::GptHead(const ModelRecipe& recipe)
    : recipe_(recipe), norm_("model.norm", recipe.dim, recipe.norm, recipe.bias, recipe.norm_eps) {}

std::vector<ParameterSpec> GptHead::specs() const {
  std::vector<ParameterSpec> specs;
  norm_.declare(specs);
  ParameterSpec output;
  output.name = "lm_head.weight";
  output.shape = {recipe_.vocab_size, recipe_.dim};
  output.initializer = Initializer::normal(0.02);
  if (recipe_.tied_embeddings) output.tied_to = "model.embed_tokens.weight";
  specs.push_back(std::move(output));
  return specs;
}

void GptHead::bind(const Arena& arena) {
  norm_.bind(arena);
  output_ = &arena.parameter("lm_head.weight");
}

Activation GptHead::forward(Activation input, const Saved& saved,
                            std::unique_ptr<UnitState>& state) {
  const at::Tensor targets = saved.microbatch.targets.reshape({-1});
  auto own = std::make_unique<HeadState>();
  const at::Tensor normalised = norm_.forward(input.hidden, own->norm);
  HeadLoss loss;
  if (saved.mode == Mode::kTrain) {
    loss = differentiate_head(normalised, *output_, targets, saved.loss_scale);
    own->gradient = std::move(loss.input_gradient);
    state = std::move(own);
  } else {
    loss = evaluate_head(normalised, *output_, targets);
  }
  return {{}, loss.sum, saved.microbatch.valid};
}

at::Tensor GptHead::backward_input(UnitState& state, const Saved&, at::Tensor) {
  const auto& own = static_cast<HeadState&>(state);
  return norm_.backward(own.norm, own.gradient);
}

at::Tensor GptHead::logits(const at::Tensor& hidden) const {
  Normalization::State unused;
  return at::mm(norm_.forward(hidden, unused), output_->value().t())
      .to(output_->master().scalar_type());
}

}  // namespace troika
