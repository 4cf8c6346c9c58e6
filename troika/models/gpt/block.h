// One residual block of a GPT: x += o(attention(norm(x))), then x += feed_forward(norm(x)).
#pragma once

#include <troika/models/gpt/options.h>
#include <troika/models/model.h>
#include <troika/nn/attention.h>
#include <troika/nn/head_cut.h>
#include <troika/nn/linear.h>
#include <troika/nn/normalization.h>
#include <troika/nn/stage.h>

#include <memory>
#include <optional>
#include <string>

namespace troika {

// Cosines and sines of the rotary positions, which the blocks of a model share. The first block
// that is bound makes them: of 131,072 positions they take 67 MB in fp32.
struct RotaryPositions {
  at::Tensor table;
};

// A transformer block. On a tensor axis, norms, dropout and residual additions work on this rank's
// slice of the tokens. Projections into attention and feed-forward layers are cut by columns, those
// out of them by rows. Tokens are gathered before the first kind and sums are scattered after the
// second; the backward pass does the reverse. Norms of q and k work on all tokens of this rank's
// heads. All ranks would keep the gathered tokens alike. They
// are gathered again for the weight gradients instead (Korthikanti et al. 2022, section 4.2.2).
class GptBlock final : public Unit {
 public:
  GptBlock(const GptOptions& options, std::int64_t layer, std::uint64_t seed,
           const ModelLayout& layout, std::shared_ptr<RotaryPositions> positions);

  [[nodiscard]] std::vector<ParameterSpec> specs() const override;
  void adapt(LoraTargets& targets) override;
  void bind(const Arena& arena) override;
  // Takes and returns hidden states, this rank's slice of the tokens: [slice_of(samples x
  // seq_len).count, dim].
  Activation forward(Activation input, const Saved& saved,
                     std::unique_ptr<UnitState>& state) override;
  Tensors backward_input(UnitState& state, const Saved& saved, Tensors gradients) override;
  void backward_weight(UnitState& state) override;
  [[nodiscard]] bool can_recompute() const override { return true; }
  [[nodiscard]] std::vector<FlowSpec> outputs(const Microbatch& microbatch) const override;

 private:
  struct State;
  struct AttentionInputs;
  at::Tensor attend(const at::Tensor& hidden, const Saved& saved, State& state) const;
  [[nodiscard]] AttentionInputs project(const at::Tensor& tokens, const Microbatch& microbatch,
                                        State& state) const;
  // Normalises each head of [tokens, heads x head_dim].
  [[nodiscard]] at::Tensor normalise_heads(const Normalization& norm, const at::Tensor& heads,
                                           Normalization::State& state) const;
  // Returns the gradient of what normalise_heads() took.
  [[nodiscard]] at::Tensor normalise_heads_backward(const Normalization& norm,
                                                    const at::Tensor& gradient,
                                                    Normalization::State& state) const;
  // Computes the part without weights, and keeps the tensors for its backward pass in `state`.
  void core_attention(const AttentionInputs& inputs, const Microbatch& microbatch,
                      State& state) const;
  at::Tensor attend_backward(State& state, const Saved& saved, const at::Tensor& gradient) const;
  at::Tensor feed_forward(const at::Tensor& hidden, State& state) const;
  at::Tensor feed_forward_backward(State& state, const at::Tensor& gradient) const;
  [[nodiscard]] at::Tensor dropped(const at::Tensor& tensor, const Saved& saved,
                                   std::uint64_t stream) const;
  [[nodiscard]] at::Tensor all_gather_slices(const at::Tensor& slice, const State& state,
                                             std::string_view what) const;
  [[nodiscard]] at::Tensor reduce_scatter_slices(const at::Tensor& partial, const State& state,
                                                 std::string_view what) const;

  GptOptions options_;
  TensorAxis axis_;
  HeadCut heads_;
  bool recompute_attention_;
  std::string label_;  // "layer 3"
  std::uint64_t attention_dropout_, feed_forward_dropout_;
  Normalization attention_norm_, feed_forward_norm_;
  std::optional<Normalization> query_norm_, key_norm_;  // of their heads
  Linear query_, key_, value_, output_;
  std::optional<Linear> gate_;
  Linear up_, down_;
  std::shared_ptr<RotaryPositions> shared_positions_;
  at::Tensor rotary_;  // their table; rope only
};

}  // namespace troika
