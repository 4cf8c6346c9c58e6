#include <troika/data/hub_tokenizer/json_pattern.h>
#include <troika/data/hub_tokenizer/normalizer.h>
#include <troika/data/hub_tokenizer/unicode.h>

#include <stdexcept>

namespace troika::hub_tokenizer_plugin {
namespace {

using Is = bool (*)(char32_t);

std::string without(const std::string& text, Is is_dropped) {
  std::u32string kept;
  for (const char32_t each : characters_of(text)) {
    if (!is_dropped(each)) kept += each;
  }
  return utf8_of(kept);
}

bool is_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

std::string cleaned(const std::string& text) {
  std::u32string kept;
  for (const char32_t each : characters_of(text)) {
    if (each == 0 || each == 0xFFFD || is_control(each)) continue;
    kept += is_space(each) ? U' ' : each;
  }
  return utf8_of(kept);
}

std::string with_spaced_ideographs(const std::string& text) {
  std::u32string spaced;
  for (const char32_t each : characters_of(text)) {
    if (!is_ideograph(each)) {
      spaced += each;
      continue;
    }
    spaced += U' ';
    spaced += each;
    spaced += U' ';
  }
  return utf8_of(spaced);
}

std::string replaced(const Pattern& pattern, const std::string& text, const std::string& with) {
  std::string made;
  std::size_t done = 0;
  pattern.each(text, [&](std::size_t begin, std::size_t end) {
    made.append(text, done, begin - done);
    made += with;
    done = end;
  });
  return made.append(text, done);
}

std::string stripped(const std::string& text, bool left, bool right) {
  const std::u32string characters = characters_of(text);
  std::size_t begin = 0, end = characters.size();
  while (left && begin < end && is_space(characters[begin])) ++begin;
  while (right && end > begin && is_space(characters[end - 1])) --end;
  return utf8_of(std::u32string_view(characters).substr(begin, end - begin));
}

}  // namespace

Normalizer::Normalizer(const Json& section) {
  if (!section.is_null()) add(section);
}

void Normalizer::add(const Json& section) {
  const std::string type = section.at("type");
  const auto form = [this](Form form) {
    steps_.emplace_back([form](const std::string& text) { return normalised(text, form); });
  };
  if (type == "Sequence") {
    for (const Json& each : section.at("normalizers")) add(each);
  } else if (type == "NFC") {
    form(Form::kNfc);
  } else if (type == "NFD") {
    form(Form::kNfd);
  } else if (type == "NFKC") {
    form(Form::kNfkc);
  } else if (type == "NFKD") {
    form(Form::kNfkd);
  } else if (type == "Lowercase") {
    steps_.emplace_back([](const std::string& text) { return lower_case(text); });
  } else if (type == "StripAccents") {
    steps_.emplace_back([](const std::string& text) { return without(text, &is_mark); });
  } else if (type == "Strip") {
    const bool left = section.value("strip_left", true), right = section.value("strip_right", true);
    steps_.emplace_back([=](const std::string& text) { return stripped(text, left, right); });
  } else if (type == "Prepend") {
    const std::string with = section.at("prepend");
    steps_.emplace_back(
        [with](const std::string& text) { return text.empty() ? text : with + text; });
  } else if (type == "Replace") {
    const Pattern pattern = pattern_of(section.at("pattern"));
    const std::string with = section.at("content");
    steps_.emplace_back([=](const std::string& text) { return replaced(pattern, text, with); });
  } else if (type == "BertNormalizer") {
    const bool lower = section.value("lowercase", true);
    const Json& accents = section.value("strip_accents", Json());
    if (section.value("clean_text", true)) steps_.emplace_back(&cleaned);
    if (section.value("handle_chinese_chars", true)) steps_.emplace_back(&with_spaced_ideographs);
    if (accents.is_null() ? lower : accents.get<bool>()) {
      steps_.emplace_back([](const std::string& text) {
        return without(normalised(text, Form::kNfd), &is_accent);
      });
    }
    if (lower) steps_.emplace_back([](const std::string& text) { return lower_case(text); });
  } else {
    throw std::runtime_error("its normalizer is of type \"" + type +
                             "\", which troika does not have");
  }
}

std::string Normalizer::apply(std::string text) const {
  for (const Step& step : steps_) text = step(std::move(text));
  return text;
}

}  // namespace troika::hub_tokenizer_plugin
