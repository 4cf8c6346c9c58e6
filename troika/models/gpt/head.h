// The last unit of a GPT: final norm, output projection, cross-entropy.
#pragma once

#include <troika/models/gpt/batch.h>
#include <troika/models/gpt/options.h>
#include <troika/models/model.h>
#include <troika/nn/loss_head.h>
#include <troika/nn/normalization.h>
#include <troika/nn/stage.h>

namespace troika {

// The output layer and loss. On a tensor axis each rank has a slice of the vocabulary's rows and
// all tokens' logits of it. Every rank returns the loss of all ranks.
class GptHead final : public Unit {
 public:
  explicit GptHead(const GptOptions& options, const ModelLayout& layout = {});

  [[nodiscard]] std::vector<ParameterSpec> specs() const override;
  void bind(const Arena& arena) override;
  // Returns the loss. In training, the same pass takes the gradient of the logits and adds to the
  // output weight's slot at once. `input` is this rank's slice of the tokens, [slice, dim].
  Activation forward(Activation input, const Saved& saved,
                     std::unique_ptr<UnitState>& state) override;
  Tensors backward_input(UnitState& state, const Saved& saved, Tensors gradients) override;
  void backward_weight(UnitState&) override {}
  [[nodiscard]] bool forward_adds_gradients() const override { return true; }
  [[nodiscard]] std::vector<FlowSpec> inputs(const Microbatch& microbatch) const override {
    return {hidden_states(microbatch, axis_, options_)};
  }
  [[nodiscard]] std::vector<FlowSpec> outputs(const Microbatch&) const override { return {}; }

  // Returns [n, vocab_size] in the masters' precision, from hidden [n, dim]. With one tensor rank
  // only.
  [[nodiscard]] at::Tensor logits(const at::Tensor& hidden) const;

 private:
  // Return the sum of losses and, in training, the gradient of this rank's slice of the normalised
  // input.
  [[nodiscard]] HeadLoss loss_of(const at::Tensor& normalised, const Saved& saved) const;
  [[nodiscard]] HeadLoss split_loss_of(const at::Tensor& normalised, const Saved& saved) const;
  // Returns whether anything below the logits needs their gradient.
  [[nodiscard]] InputGradient input_gradient_of(const Saved& saved) const;

  GptOptions options_;
  TensorAxis axis_;
  LogitChunks chunks_;
  bool holds_tied_replica_;  // of the token embedding, which is in another stage
  Normalization norm_;
  Parameter* output_ = nullptr;
};

}  // namespace troika
