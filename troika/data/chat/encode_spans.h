// Turns a conversation into token ids, and says which of them are to be learned.
#pragma once

#include <troika/data/chat/chat_template.h>
#include <troika/data/tokenizer.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace troika {

struct EncodedSpans {
  std::vector<std::int32_t> ids;
  std::vector<char> are_learned;  // 1 or 0 for each id
};

// Encodes control spans as their tokens, and the text between two of them at once, as the whole
// text would be. A control span whose token the vocabulary lacks is text. A token is learned where
// its first byte is, or where what is learned begins inside it. Throws DataError where text that is
// no control span would become a control token.
[[nodiscard]] EncodedSpans encode_spans(const Tokenizer& tokenizer, std::string_view text,
                                        std::span<const TextSpan> spans);

}  // namespace troika
