// Internal: what makes ids of a word: the section "model".
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troika::hub_tokenizer_plugin {

// Ids by token.
using Vocabulary = std::unordered_map<std::string, int>;

// Const access is thread safe.
class WordModel {
 public:
  virtual ~WordModel() = default;
  // Appends the ids of a word of valid UTF-8. Throws std::runtime_error where it has none.
  virtual void encode(std::string_view word, std::vector<int>& ids) const = 0;
  [[nodiscard]] virtual const Vocabulary& vocabulary() const = 0;
};

// Byte-pair encoding (Sennrich et al. 2016), with bytes or an unknown token for what has no id.
[[nodiscard]] std::unique_ptr<WordModel> make_byte_pairs(const nlohmann::json& model);
// The longest pieces from the left (BERT, Devlin et al. 2019), or whole words alone.
[[nodiscard]] std::unique_ptr<WordModel> make_word_pieces(const nlohmann::json& model);
[[nodiscard]] std::unique_ptr<WordModel> make_whole_words(const nlohmann::json& model);
// The likeliest pieces (Kudo 2018).
[[nodiscard]] std::unique_ptr<WordModel> make_unigrams(const nlohmann::json& model);

// Reads the section. Throws std::runtime_error naming a type that is unknown.
[[nodiscard]] std::unique_ptr<WordModel> make_word_model(const nlohmann::json& model);

// Returns the token of a byte where a model falls back to bytes: "<0x0A>".
[[nodiscard]] std::string byte_token(unsigned char byte);

}  // namespace troika::hub_tokenizer_plugin
