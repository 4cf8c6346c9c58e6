// Text from the saved model of a run.
#pragma once

#include <troika/data/tokenizer.h>
#include <troika/models/gpt/logits.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace troika {

struct SamplingOptions {
  std::int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 40;   // 0: all
  std::uint64_t seed = 1;
};

class Generator {
 public:
  // Loads a finished run. Throws DataError naming what is missing, UsageError if its model is no
  // gpt.
  explicit Generator(const std::filesystem::path& run);
  ~Generator();

  // Goes on from `prompt`, token by token; the model sees the last seq_len tokens. `emit` gets each
  // piece of text as it comes. The same seed gives the same text. Throws UsageError for an empty
  // prompt.
  void generate(std::string_view prompt, const SamplingOptions& options,
                const std::function<void(std::string_view)>& emit) const;

 private:
  Recipe recipe_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<GptLogits> logits_;
};

}  // namespace troika
