// A GPT's next-token logits, for sampling text: no loss and no gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/config/recipe.h>
#include <troika/models/gpt/head.h>
#include <troika/nn/stage.h>

#include <memory>
#include <vector>

namespace troika {

class GptLogits {
 public:
  // `arena` holds the parameters of build_gpt(recipe) and must outlive this.
  GptLogits(const ModelRecipe& recipe, const Arena& arena);

  // [vocab_size], in the masters' precision, for the token after `token_ids`, int64 [length] with
  // 0 < length <= seq_len.
  [[nodiscard]] at::Tensor next(const at::Tensor& token_ids) const;

 private:
  std::vector<std::unique_ptr<Unit>> body_;  // embedding and blocks
  GptHead head_;
};

}  // namespace troika
