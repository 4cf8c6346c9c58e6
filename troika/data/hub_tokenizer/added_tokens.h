// Internal: tokens that are found in a text before all else: the section "added_tokens".
#pragma once

#include <troika/data/hub_tokenizer/normalizer.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troika::hub_tokenizer_plugin {

struct AddedToken {
  std::string text;
  int id = 0;
  bool is_special = false;
  bool is_normalised = false;  // found in the normalised text, and normalised itself
  bool is_single_word = false;
  bool strips_left = false, strips_right = false;  // takes the white space beside it
};

// Cuts a text at such tokens. Const access is thread safe.
class AddedTokens {
 public:
  AddedTokens(std::vector<AddedToken> tokens, const Normalizer& normalizer);

  // The tokens that one pass over a text looks for.
  struct Pass {
    bool normalised = false;  // those that are found in normalised text, or only others
    bool special = true;      // also special ones
  };
  // Calls `text` for what lies between tokens, and `token` for each of them, from left to right;
  // the longest counts.
  void cut(std::string_view all, Pass pass,
           const std::function<void(std::string_view, std::size_t begin)>& text,
           const std::function<void(int id)>& token) const;
  // Returns the token of this text; null where there is none.
  [[nodiscard]] const AddedToken* named(std::string_view text) const;

 private:
  [[nodiscard]] const AddedToken* find(std::string_view all, std::size_t at, Pass pass) const;

  std::vector<AddedToken> tokens_;
  // Hold them by their first byte, the longest first.
  std::map<char, std::vector<const AddedToken*>> normalised_, others_;
};

// Reads the section.
[[nodiscard]] std::vector<AddedToken> added_tokens_of(const nlohmann::json& tokenizer);

}  // namespace troika::hub_tokenizer_plugin
