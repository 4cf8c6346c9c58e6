// Internal: a model whose outputs are the logits of every token, as a predictor of the next one.
#pragma once

#include <troika/inference/trained_model.h>
#include <troika/models/kind.h>

#include <filesystem>
#include <string>

namespace troika {

// Returns whether a model takes a row of tokens and gives what its loss takes for each of them.
[[nodiscard]] bool gives_logits_of_tokens(const ModelTraits& traits);

// Passes a whole row of tokens through the model for each next one, with zeros behind those that
// are known: a model that predicts the next token does not look at them. Not thread safe.
class OutputLanguageModel final : public LanguageModel {
 public:
  // Loads the model of a finished run. Requires gives_logits_of_tokens().
  OutputLanguageModel(const std::filesystem::path& run, const std::string& device);

  [[nodiscard]] at::Tensor next(const at::Tensor& token_ids) const override;

 private:
  TrainedModel model_;
  TensorSpec tokens_;
};

}  // namespace troika
