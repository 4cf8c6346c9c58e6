// One residual block of a GPT: x += o(attention(norm(x))), then x += feed_forward(norm(x)).
#pragma once

#include <troika/config/recipe.h>
#include <troika/nn/attention.h>
#include <troika/nn/linear.h>
#include <troika/nn/normalization.h>
#include <troika/nn/stage.h>

#include <optional>

namespace troika {

class GptBlock final : public Unit {
 public:
  GptBlock(const ModelRecipe& recipe, std::int64_t layer, std::uint64_t seed);

  [[nodiscard]] std::vector<ParameterSpec> specs() const override;
  void bind(const Arena& arena) override;
  Activation forward(Activation input, const Saved& saved,
                     std::unique_ptr<UnitState>& state) override;
  at::Tensor backward_input(UnitState& state, const Saved& saved, at::Tensor gradient) override;
  void backward_weight(UnitState& state) override;

 private:
  struct State;
  at::Tensor attend(const at::Tensor& hidden, const Microbatch& microbatch, State& state) const;
  at::Tensor attend_backward(State& state, const at::Tensor& gradient) const;
  at::Tensor feed_forward(const at::Tensor& hidden, State& state) const;
  at::Tensor feed_forward_backward(State& state, const at::Tensor& gradient) const;
  [[nodiscard]] at::Tensor dropped(const at::Tensor& tensor, const Saved& saved,
                                   std::uint64_t stream) const;

  ModelRecipe recipe_;
  std::uint64_t attention_dropout_, feed_forward_dropout_;
  Normalization attention_norm_, feed_forward_norm_;
  Linear query_, key_, value_, output_;
  std::optional<Linear> gate_;
  Linear up_, down_;
  at::Tensor rotary_;  // rope only
};

}  // namespace troika
