#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <troika/inference/output_language_model.h>

namespace troika {

bool gives_logits_of_tokens(const ModelTraits& traits) {
  if (!traits.sample.is_language() || traits.has_own_loss || traits.output_tensors.empty()) {
    return false;
  }
  const TensorSpec& tokens = traits.sample.input();
  const std::vector<std::int64_t>& logits = traits.output_tensors.front().shape;
  return logits == std::vector{tokens.shape.front(), tokens.range};
}

OutputLanguageModel::OutputLanguageModel(const std::filesystem::path& run,
                                         const std::string& device)
    : model_(run, device, SavedModel::kLast, std::nullopt),
      tokens_(traits_of(model_.recipe().model).sample.input()) {}

at::Tensor OutputLanguageModel::next(const at::Tensor& token_ids) const {
  const c10::InferenceMode off(false);  // a script may keep views that count their versions
  const std::int64_t known = token_ids.size(0);
  at::Tensor row = at::zeros({1, tokens_.shape.front()}, at::kLong);
  row[0].narrow(0, 0, known).copy_(token_ids);
  return model_({{tokens_.name, row}})[0][known - 1];
}

}  // namespace troika
