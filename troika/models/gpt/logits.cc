#include <ATen/ATen.h>
#include <troika/models/gpt/gpt.h>
#include <troika/models/gpt/logits.h>

namespace troika {

GptLogits::GptLogits(const GptOptions& options, const Arena& arena)
    : body_(build_gpt(options, 0).units), head_(options) {
  body_.pop_back();  // the head that computes the loss
  for (const auto& unit : body_) unit->bind(arena);
  head_.bind(arena);
}

at::Tensor GptLogits::next(const at::Tensor& token_ids) const {
  Saved saved;
  saved.mode = Mode::kEvaluate;
  saved.microbatch.tensors = {{"input_ids", token_ids.unsqueeze(0)}};
  Activation activation;
  for (const auto& unit : body_) {
    std::unique_ptr<UnitState> unused;
    activation = unit->forward(std::move(activation), saved, unused);
  }
  const at::Tensor last = activation.tensors[0].narrow(0, -1, 1);
  return head_.logits(last).squeeze(0);
}

}  // namespace troika
