// The first unit of a GPT: token embedding, learned positions where asked for, dropout.
#pragma once

#include <troika/models/gpt/options.h>
#include <troika/models/model.h>
#include <troika/nn/stage.h>

namespace troika {

// The token and position embedding. On a tensor axis each rank has a slice of the vocabulary's
// rows. Ids of other slices look up zeros. The sum over the ranks has one non-zero term a row, and
// is scattered over the tokens.
class GptEmbedding final : public Unit {
 public:
  GptEmbedding(const GptOptions& options, std::uint64_t seed, const ModelLayout& layout = {});

  [[nodiscard]] std::vector<ParameterSpec> specs() const override;
  void bind(const Arena& arena) override;
  // Returns this rank's slice of the tokens, [slice_of(samples x seq_len).count, dim].
  Activation forward(Activation input, const Saved& saved,
                     std::unique_ptr<UnitState>& state) override;
  Tensors backward_input(UnitState& state, const Saved& saved, Tensors gradients) override;
  [[nodiscard]] std::vector<FlowSpec> outputs(const Microbatch& microbatch) const override;
  void backward_weight(UnitState&) override {}  // scattered rows: done with the input gradient

 private:
  [[nodiscard]] at::Tensor look_up(const Microbatch& microbatch) const;
  [[nodiscard]] at::Tensor position_ids(const Microbatch& microbatch) const;
  [[nodiscard]] at::Tensor dropped(const at::Tensor& tensor, const Microbatch& microbatch) const;
  void add_token_gradients(const Microbatch& microbatch, const at::Tensor& gradient) const;

  GptOptions options_;
  TensorAxis axis_;
  bool tied_across_stages_;
  IndexRange rows_;  // of the vocabulary, held here
  std::uint64_t dropout_stream_;
  Parameter* tokens_ = nullptr;
  Parameter* positions_ = nullptr;
};

}  // namespace troika
