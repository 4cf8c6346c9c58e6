// Templates of conversations: how messages become one text, which parts of it are control tokens,
// and which are to be learned. Each is a plain function of the messages, and no program.
#pragma once

#include <troika/config/key.h>
#include <troika/data/tokenizer.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

enum class ChatTemplate { kChatml, kLlama3, kMistral };

template <>
std::span<const std::string_view> names_of<ChatTemplate>();

// A part of a conversation's text, which begins where the one before it ends.
struct TextSpan {
  std::size_t end = 0;      // bytes
  bool is_control = false;  // one token of the template, such as <|im_end|>
  bool is_learned = false;
  // Says what special tokens become that are written in it.
  Specials specials = Specials::kAreText;

  bool operator==(const TextSpan&) const = default;
};

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
  bool is_learned = true;  // where the role is the assistant's
};

struct ChatText {
  std::string text;
  std::vector<TextSpan> spans;
};

// Renders messages. The assistant's content is learned, with the token that ends it. Throws
// DataError saying what is wrong: no message, no turn of the assistant that is learned, or an order
// that the template does not have.
[[nodiscard]] ChatText render_chat(ChatTemplate chat_template,
                                   std::span<const ChatMessage> messages);
// Renders messages up to where the assistant answers the last of them. Throws likewise.
[[nodiscard]] ChatText render_prompt(ChatTemplate chat_template,
                                     std::span<const ChatMessage> messages);

// Finds the spans of a text that was rendered already. Special tokens in it are tokens. Throws
// DataError where it has no words of the assistant.
[[nodiscard]] std::vector<TextSpan> spans_of_rendered(ChatTemplate chat_template,
                                                      std::string_view text);

// Returns the tokens that end the assistant's turn. A vocabulary may lack all but the first.
[[nodiscard]] std::span<const std::string_view> ends_of_turn(ChatTemplate chat_template);

// Throws DataError naming a token of the template that the tokenizer lacks. `tokenizer_name` is for
// the message.
void check_chat_tokenizer(ChatTemplate chat_template, const Tokenizer& tokenizer,
                          std::string_view tokenizer_name);

}  // namespace troika
