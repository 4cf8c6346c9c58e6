// The last unit of a GPT: final norm, output projection, cross-entropy.
#pragma once

#include <troika/config/recipe.h>
#include <troika/nn/normalization.h>
#include <troika/nn/stage.h>

namespace troika {

class GptHead final : public Unit {
 public:
  explicit GptHead(const ModelRecipe& recipe);

  [[nodiscard]] std::vector<ParameterSpec> specs() const override;
  void bind(const Arena& arena) override;
  // In training, the gradient of the logits is taken in the same pass and the output weight's slot
  // is added to at once.
  Activation forward(Activation input, const Saved& saved,
                     std::unique_ptr<UnitState>& state) override;
  at::Tensor backward_input(UnitState& state, const Saved& saved, at::Tensor gradient) override;
  void backward_weight(UnitState&) override {}

  // [n, vocab_size] in the masters' precision, from hidden [n, dim].
  [[nodiscard]] at::Tensor logits(const at::Tensor& hidden) const;

 private:
  ModelRecipe recipe_;
  Normalization norm_;
  Parameter* output_ = nullptr;
};

}  // namespace troika
