// Internal: bytes as the characters that byte-level vocabularies are written in (Radford et al.
// 2019, their encoder.py): a byte that can be seen stands for itself, the others for U+0100 on.
#pragma once

#include <string>
#include <string_view>

namespace troika::hub_tokenizer_plugin {

[[nodiscard]] std::string to_byte_characters(std::string_view bytes);
// Gives the bytes back. Characters that stand for none are kept.
[[nodiscard]] std::string from_byte_characters(std::string_view text);

}  // namespace troika::hub_tokenizer_plugin
