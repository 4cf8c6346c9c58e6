// The first unit of a GPT: token embedding, learned positions where asked for, dropout.
#pragma once

#include <troika/config/recipe.h>
#include <troika/nn/stage.h>

namespace troika {

class GptEmbedding final : public Unit {
 public:
  GptEmbedding(const ModelRecipe& recipe, std::uint64_t seed);

  [[nodiscard]] std::vector<ParameterSpec> specs() const override;
  void bind(const Arena& arena) override;
  Activation forward(Activation input, const Saved& saved,
                     std::unique_ptr<UnitState>& state) override;
  at::Tensor backward_input(UnitState& state, const Saved& saved, at::Tensor gradient) override;
  void backward_weight(UnitState&) override {}  // scattered rows: done with the input gradient

 private:
  ModelRecipe recipe_;
  std::uint64_t dropout_stream_;
  Parameter* tokens_ = nullptr;
  Parameter* positions_ = nullptr;
};

}  // namespace troika
