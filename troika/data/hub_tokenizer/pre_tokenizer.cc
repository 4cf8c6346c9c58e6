#include <troika/data/hub_tokenizer/byte_level.h>
#include <troika/data/hub_tokenizer/json_pattern.h>
#include <troika/data/hub_tokenizer/pre_tokenizer.h>
#include <troika/data/hub_tokenizer/unicode.h>

#include <stdexcept>

namespace troika::hub_tokenizer_plugin {
namespace {

// GPT-2's words.
constexpr const char* kByteLevelWords =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Letters, marks, digits and what joins them (Unicode's report 18 on \w), or signs.
constexpr const char* kWhitespaceWords =
    R"([\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}]+|)"
    R"([^\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\s]+)";

// What becomes of the parts that a pattern finds.
enum class Behavior { kRemoved, kIsolated, kWithPrevious, kWithNext, kContiguous };

Behavior behavior_of(const std::string& word) {
  if (word == "Removed") return Behavior::kRemoved;
  if (word == "Isolated") return Behavior::kIsolated;
  if (word == "MergedWithPrevious") return Behavior::kWithPrevious;
  if (word == "MergedWithNext") return Behavior::kWithNext;
  if (word == "Contiguous") return Behavior::kContiguous;
  throw std::runtime_error("its pre_tokenizer has the behavior \"" + word +
                           "\", which troika does not have");
}

// Consecutive parts of a text.
struct Part {
  std::string_view text;
  bool is_match = false;
};

std::vector<Part> parts_of(const Pattern& pattern, std::string_view text, bool inverts) {
  std::vector<Part> parts;
  std::size_t done = 0;
  const auto between = [&](std::size_t end) {
    if (end > done) parts.push_back({text.substr(done, end - done), inverts});
  };
  pattern.each(text, [&](std::size_t begin, std::size_t end) {
    between(begin);
    parts.push_back({text.substr(begin, end - begin), !inverts});
    done = end;
  });
  between(text.size());
  return parts;
}

void join_parts(const std::vector<Part>& parts, Behavior behavior, Words& to) {
  bool last_was_match = false, is_begun = false;
  for (const Part& part : parts) {
    bool joins = false;
    switch (behavior) {
      case Behavior::kRemoved:
        if (part.is_match) continue;
        break;
      case Behavior::kIsolated:
        break;
      case Behavior::kWithPrevious:
        joins = is_begun && part.is_match && !last_was_match;
        break;
      case Behavior::kWithNext:
        joins = is_begun && !part.is_match && last_was_match;
        break;
      case Behavior::kContiguous:
        joins = is_begun && part.is_match == last_was_match;
        break;
    }
    if (joins) {
      to.back() += part.text;
    } else {
      to.emplace_back(part.text);
    }
    last_was_match = part.is_match;
    is_begun = true;
  }
}

using IsOne = bool (*)(char32_t);

// Each character that `is_one` is a word; `drops`: no word.
void isolate(std::string_view text, IsOne is_one, bool drops, Words& to) {
  bool is_open = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = std::min(utf8_length(text[at]), text.size() - at);
    const std::string_view character = text.substr(at, length);
    at += length;
    if (!is_one(characters_of(character).front())) {
      if (!std::exchange(is_open, true)) to.emplace_back();
      to.back() += character;
      continue;
    }
    is_open = false;
    if (!drops) to.emplace_back(character);
  }
}

bool is_bert_punctuation(char32_t c) {
  const bool is_ascii = (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
                        (c >= 123 && c <= 126);
  return is_ascii || is_punctuation(c);
}

}  // namespace

PreTokenizer::PreTokenizer(const nlohmann::json& section) {
  if (!section.is_null()) add(section);
}

void PreTokenizer::add_byte_level(const nlohmann::json& section) {
  const bool has_space = section.value("add_prefix_space", true);
  const bool cuts = section.value("use_regex", true);
  steps_.emplace_back([has_space, cuts, words = Pattern::expression(kByteLevelWords)](
                          std::string word, bool, Words& to) {
    if (has_space && !word.starts_with(' ')) word.insert(0, " ");
    Words made;
    if (cuts) {
      join_parts(parts_of(words, word, false), Behavior::kIsolated, made);
    } else {
      made.push_back(std::move(word));
    }
    for (const std::string& each : made) to.push_back(to_byte_characters(each));
  });
}

void PreTokenizer::add_metaspace(const nlohmann::json& section) {
  const std::string sign = section.value("replacement", std::string("\xE2\x96\x81"));
  std::string scheme = section.value("add_prefix_space", true) ? "always" : "never";
  scheme = section.value("prepend_scheme", scheme);
  const bool splits = section.value("split", true);
  steps_.emplace_back(
      [=, space = Pattern::literal(" ")](const std::string& word, bool is_first, Words& to) {
        std::string made;
        for (const Part& part : parts_of(space, word, false))
          made += part.is_match ? sign : part.text;
        const bool prepends = scheme == "always" || (scheme == "first" && is_first);
        if (prepends && !made.starts_with(sign)) made.insert(0, sign);
        if (!splits) return to.push_back(std::move(made));
        join_parts(parts_of(Pattern::literal(sign), made, false), Behavior::kWithNext, to);
      });
}

void PreTokenizer::add_split(const nlohmann::json& section) {
  steps_.emplace_back(
      [pattern = pattern_of(section.at("pattern")), behavior = behavior_of(section.at("behavior")),
       inverts = section.value("invert", false)](const std::string& word, bool, Words& to) {
        join_parts(parts_of(pattern, word, inverts), behavior, to);
      });
}

void PreTokenizer::add(const nlohmann::json& section) {
  const std::string type = section.at("type");
  if (type == "Sequence") {
    for (const auto& each : section.at("pretokenizers")) add(each);
  } else if (type == "ByteLevel") {
    add_byte_level(section);
  } else if (type == "Metaspace") {
    add_metaspace(section);
  } else if (type == "Split") {
    add_split(section);
  } else if (type == "BertPreTokenizer") {
    steps_.emplace_back([](const std::string& word, bool, Words& to) {
      isolate(word, &is_space, /*drops=*/true, to);
    });
    steps_.emplace_back([](const std::string& word, bool, Words& to) {
      isolate(word, &is_bert_punctuation, /*drops=*/false, to);
    });
  } else if (type == "Whitespace") {
    steps_.emplace_back(
        [words = Pattern::expression(kWhitespaceWords)](const std::string& word, bool, Words& to) {
          join_parts(parts_of(words, word, /*inverts=*/true), Behavior::kRemoved, to);
        });
  } else if (type == "WhitespaceSplit") {
    steps_.emplace_back([](const std::string& word, bool, Words& to) {
      isolate(word, &is_space, /*drops=*/true, to);
    });
  } else if (type == "Punctuation") {
    const Behavior behavior = behavior_of(section.value("behavior", std::string("Isolated")));
    if (behavior != Behavior::kIsolated) {
      throw std::runtime_error(
          "its pre_tokenizer Punctuation does not isolate, which troika needs");
    }
    steps_.emplace_back([](const std::string& word, bool, Words& to) {
      isolate(word, &is_bert_punctuation, /*drops=*/false, to);
    });
  } else if (type == "Digits") {
    const bool each = section.value("individual_digits", false);
    const Pattern digits = Pattern::expression(each ? "\\p{N}" : "\\p{N}+");
    steps_.emplace_back([digits](const std::string& word, bool, Words& to) {
      join_parts(parts_of(digits, word, false), Behavior::kIsolated, to);
    });
  } else {
    throw std::runtime_error("its pre_tokenizer is of type \"" + type +
                             "\", which troika does not have");
  }
}

Words PreTokenizer::cut(std::string text, bool is_first) const {
  Words words;
  if (!text.empty()) words.push_back(std::move(text));
  for (const Step& step : steps_) {
    Words cut;
    for (std::size_t i = 0; i < words.size(); ++i) {
      step(std::move(words[i]), is_first && i == 0, cut);
    }
    words = std::move(cut);
  }
  return words;
}

}  // namespace troika::hub_tokenizer_plugin
