// Internal: cuts a text into words, as the section "pre_tokenizer" says. A model of the tokenizer
// never joins two words.
#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace troika::hub_tokenizer_plugin {

using Words = std::vector<std::string>;

// A row of cuts. Const access is thread safe.
class PreTokenizer {
 public:
  // Reads the section, which may be null. Throws std::runtime_error naming a type that is unknown.
  explicit PreTokenizer(const nlohmann::json& section);

  // Cuts valid UTF-8. `is_first`: the text is not behind another of its document.
  [[nodiscard]] Words cut(std::string text, bool is_first) const;

 private:
  // Cuts a word that is the first of its text, or not, and appends what it becomes.
  using Step = std::function<void(std::string word, bool is_first, Words& to)>;
  void add(const nlohmann::json& section);
  void add_byte_level(const nlohmann::json& section);
  void add_metaspace(const nlohmann::json& section);
  void add_split(const nlohmann::json& section);

  std::vector<Step> steps_;
};

}  // namespace troika::hub_tokenizer_plugin
