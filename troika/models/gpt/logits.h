// A GPT's next-token logits, for sampling text: no loss and no gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/models/gpt/head.h>
#include <troika/models/gpt/options.h>
#include <troika/nn/stage.h>

#include <memory>
#include <vector>

namespace troika {

class GptLogits final : public LanguageModel {
 public:
  // Uses `arena`, which holds the parameters of build_gpt(options) and must outlive this.
  GptLogits(const GptOptions& options, const Arena& arena);

  [[nodiscard]] at::Tensor next(const at::Tensor& token_ids) const override;

 private:
  std::vector<std::unique_ptr<Unit>> body_;  // embedding and blocks
  GptHead head_;
};

}  // namespace troika
