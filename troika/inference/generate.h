// Text from the saved model of a run.
#pragma once

#include <troika/data/chat/chat_template.h>
#include <troika/data/tokenizer.h>
#include <troika/models/kind.h>
#include <troika/recipe/recipe.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

struct SamplingOptions {
  std::int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 40;   // 0: all
  std::uint64_t seed = 1;
};

class Generator {
 public:
  // Loads a finished run. `tokenizer` and `device` take the place of the recipe's data.tokenizer
  // and train.device, unless they are empty. Throws DataError naming what is missing, UsageError if
  // its model knows no text or the device is not there.
  explicit Generator(const std::filesystem::path& run, const std::string& tokenizer = {},
                     const std::string& device = {});
  ~Generator();

  // Goes on from `prompt`, token by token; an empty one begins a document. The model sees the last
  // seq_len tokens. `emit` gets each piece of text as it comes, the prompt first, always whole
  // characters of UTF-8. The same seed gives the same text. Throws DataError for a prompt with
  // tokens that the model does not know, and what device_error() says where the device fails.
  void generate(std::string_view prompt, const SamplingOptions& options,
                const std::function<void(std::string_view)>& emit) const;
  // Answers what a user says, up to the token that ends a turn, likewise. `emit` gets the answer.
  // Throws DataError naming a token of the template that the tokenizer lacks, and for a question of
  // more tokens than the model sees.
  void answer(ChatTemplate chat_template, std::string_view says, const SamplingOptions& options,
              const std::function<void(std::string_view)>& emit) const;

 private:
  // The ids that a text begins with.
  struct Beginning {
    std::vector<std::int64_t> ids;
    bool is_shown = true;
    std::vector<std::int64_t> ends;  // the ids that end it
  };
  void draw_tokens(Beginning beginning, const SamplingOptions& options,
                   const std::function<void(std::string_view)>& emit) const;
  // Draws them, and says what device_error() says where the device fails.
  void go_on(Beginning beginning, const SamplingOptions& options,
             const std::function<void(std::string_view)>& emit) const;
  void check_known(std::span<const std::int64_t> ids) const;
  void check_fits(std::span<const std::int64_t> question) const;
  // Opens the predictor that the kind of model brings along, without values; false if it has none.
  [[nodiscard]] bool open_own(const ModelOptions& model);
  [[nodiscard]] std::vector<std::int64_t> ids_of(std::string_view prompt) const;

  Recipe recipe_;
  std::string tokenizer_name_;
  std::unique_ptr<Tokenizer> tokenizer_;
  at::Device device_ = at::kCPU;
  std::unique_ptr<Arena> arena_;  // of a kind's own predictor
  TensorSpec tokens_;
  std::unique_ptr<LanguageModel> model_;
};

}  // namespace troika
