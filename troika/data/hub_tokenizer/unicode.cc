#include <troika/data/hub_tokenizer/unicode.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>

namespace troika::hub_tokenizer_plugin {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

utf8proc_category_t category_of(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

}  // namespace

void append_utf8(std::string& text, char32_t character) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(count));
}

std::u32string characters_of(std::string_view text) {
  std::u32string characters;
  characters.reserve(text.size());
  while (!text.empty()) {
    utf8proc_int32_t character = 0;
    const auto count = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                        static_cast<utf8proc_ssize_t>(text.size()), &character);
    characters += count > 0 ? static_cast<char32_t>(character) : kReplacement;
    text.remove_prefix(count > 0 ? static_cast<std::size_t>(count) : 1);
  }
  return characters;
}

std::string utf8_of(std::u32string_view characters) {
  std::string text;
  for (const char32_t character : characters) append_utf8(text, character);
  return text;
}

std::string valid_utf8(std::string_view text) {
  return utf8_of(characters_of(text));
}

std::size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

std::string normalised(std::string_view text, Form form) {
  int options = UTF8PROC_STABLE;
  const bool composes = form == Form::kNfc || form == Form::kNfkc;
  options |= composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == Form::kNfkc || form == Form::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* made = nullptr;
  const auto bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                  static_cast<utf8proc_ssize_t>(text.size()), &made,
                                  static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> held(made, &std::free);
  if (bytes < 0) throw std::runtime_error(utf8proc_errmsg(bytes));
  return {reinterpret_cast<const char*>(made), static_cast<std::size_t>(bytes)};
}

std::string lower_case(std::string_view text) {
  std::string lower;
  for (const char32_t character : characters_of(text)) {
    if (character == 0x130) {  // its lower case is two characters
      lower += "i\xCC\x87";
      continue;
    }
    append_utf8(lower,
                static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))));
  }
  return lower;
}

bool is_space(char32_t character) {
  if ((character >= 0x09 && character <= 0x0D) || character == 0x85) return true;
  const auto category = category_of(character);
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

bool is_punctuation(char32_t character) {
  const auto category = category_of(character);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t character) {
  const auto category = category_of(character);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool is_accent(char32_t character) {
  return category_of(character) == UTF8PROC_CATEGORY_MN;
}

bool is_control(char32_t character) {
  if (character == '\t' || character == '\n' || character == '\r') return false;
  const auto category = category_of(character);
  return category == UTF8PROC_CATEGORY_CN || category >= UTF8PROC_CATEGORY_CC;
}

bool is_digit(char32_t character) {
  const auto category = category_of(character);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

}  // namespace troika::hub_tokenizer_plugin
