#include <troika/data/hub_tokenizer/added_tokens.h>
#include <troika/data/hub_tokenizer/plugin.h>
#include <troika/data/hub_tokenizer/unicode.h>

#include <algorithm>

namespace troika::hub_tokenizer_plugin {
namespace {

bool is_word_byte(char byte) {
  const auto value = static_cast<unsigned char>(byte);
  return value >= 0x80 || std::isalnum(value) != 0 || byte == '_';
}

bool stands_alone(std::string_view all, std::size_t begin, std::size_t end) {
  return (begin == 0 || !is_word_byte(all[begin - 1])) &&
         (end == all.size() || !is_word_byte(all[end]));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Normalizer& normalizer)
    : tokens_(std::move(tokens)) {
  for (AddedToken& token : tokens_) {
    if (token.is_normalised) token.text = normalizer.apply(std::move(token.text));
  }
  for (const AddedToken& token : tokens_) {
    if (token.text.empty()) continue;
    (token.is_normalised ? normalised_ : others_)[token.text.front()].push_back(&token);
  }
  for (auto* const each : {&normalised_, &others_}) {
    for (auto& [first, list] : *each) {
      std::ranges::stable_sort(list, std::greater<>(),
                               [](const AddedToken* token) { return token->text.size(); });
    }
  }
}

const AddedToken* AddedTokens::named(std::string_view text) const {
  const auto found = std::ranges::find(tokens_, text, &AddedToken::text);
  return found == tokens_.end() ? nullptr : &*found;
}

const AddedToken* AddedTokens::find(std::string_view all, std::size_t at, Pass pass) const {
  const auto& by_first = pass.normalised ? normalised_ : others_;
  const auto found = by_first.find(all[at]);
  if (found == by_first.end()) return nullptr;
  for (const AddedToken* const token : found->second) {
    if (token->is_special && !pass.special) continue;
    if (!all.substr(at).starts_with(token->text)) continue;
    if (!token->is_single_word || stands_alone(all, at, at + token->text.size())) return token;
  }
  return nullptr;
}

void AddedTokens::cut(std::string_view all, Pass pass,
                      const std::function<void(std::string_view, std::size_t)>& text,
                      const std::function<void(int)>& token) const {
  std::size_t done = 0;
  const bool has_some = !(pass.normalised ? normalised_ : others_).empty();
  for (std::size_t at = 0; has_some && at < all.size();) {
    const AddedToken* const found = find(all, at, pass);
    if (found == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + found->text.size();
    while (found->strips_left && begin > done && is_blank(all[begin - 1])) --begin;
    while (found->strips_right && end < all.size() && is_blank(all[end])) ++end;
    if (begin > done) text(all.substr(done, begin - done), done);
    token(found->id);
    done = at = end;
  }
  if (done < all.size()) text(all.substr(done), done);
}

std::vector<AddedToken> added_tokens_of(const nlohmann::json& tokenizer) {
  std::vector<AddedToken> tokens;
  for (const auto& each : tokenizer.value("added_tokens", nlohmann::json::array())) {
    tokens.push_back({each.at("content"), each.at("id"), each.value("special", false),
                      each.value("normalized", false), each.value("single_word", false),
                      each.value("lstrip", false), each.value("rstrip", false)});
  }
  std::ranges::sort(tokens, {}, &AddedToken::id);
  return tokens;
}

}  // namespace troika::hub_tokenizer_plugin
