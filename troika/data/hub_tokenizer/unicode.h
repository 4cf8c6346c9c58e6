// Internal: text as Unicode characters, through utf8proc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troika::hub_tokenizer_plugin {

// Appends a character as UTF-8.
void append_utf8(std::string& text, char32_t character);
// Returns the characters of a text; bytes that are no UTF-8 as U+FFFD.
[[nodiscard]] std::u32string characters_of(std::string_view text);
[[nodiscard]] std::string utf8_of(std::u32string_view characters);
// Returns the text with U+FFFD where it is no UTF-8.
[[nodiscard]] std::string valid_utf8(std::string_view text);
// Returns the bytes of the character that begins with `lead`.
[[nodiscard]] std::size_t utf8_length(char lead);

enum class Form { kNfc, kNfd, kNfkc, kNfkd };
// Normalises valid UTF-8. Throws std::runtime_error.
[[nodiscard]] std::string normalised(std::string_view text, Form form);

[[nodiscard]] std::string lower_case(std::string_view text);
// Ask Unicode's general categories; is_space() asks White_Space as well.
[[nodiscard]] bool is_space(char32_t character);
[[nodiscard]] bool is_punctuation(char32_t character);
[[nodiscard]] bool is_mark(char32_t character);     // M*
[[nodiscard]] bool is_accent(char32_t character);   // Mn
[[nodiscard]] bool is_control(char32_t character);  // C*, without tab and ends of lines
[[nodiscard]] bool is_digit(char32_t character);    // N*

}  // namespace troika::hub_tokenizer_plugin
