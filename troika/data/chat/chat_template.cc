#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/data/chat/chat_template.h>

#include <algorithm>
#include <array>
#include <optional>

namespace troika {

template <>
std::span<const std::string_view> names_of<ChatTemplate>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"chatml", "llama3", "mistral"});
  return kNames;
}

namespace {

using Tokens = std::vector<std::string_view>;

// What a rendered text of a template is known by.
struct Marks {
  Tokens tokens;                // that the vocabulary must have
  Tokens optional;              // that are text where it has them not
  std::string_view begin_turn;  // stands before what the assistant says
  Tokens end_turns;             // the first of them ends turns that are rendered here
};

const Marks& marks_of(ChatTemplate chat_template) {
  static const Marks kChatml{
      {"<|im_start|>", "<|im_end|>"}, {}, "<|im_start|>assistant\n", {"<|im_end|>"}};
  static const Marks kLlama3{
      {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
      {"<|eom_id|>"},
      "<|start_header_id|>assistant<|end_header_id|>\n\n",
      {"<|eot_id|>", "<|eom_id|>"}};  // the second where a tool is called
  // Mistral 7B v0.1 has no tokens for its instructions, and later ones do.
  static const Marks kMistral{{"<s>", "</s>"}, {"[INST]", "[/INST]"}, "[/INST]", {"</s>"}};
  switch (chat_template) {
    case ChatTemplate::kChatml:
      return kChatml;
    case ChatTemplate::kLlama3:
      return kLlama3;
    case ChatTemplate::kMistral:
      return kMistral;
  }
  throw InternalError("internal error: no template of this number");
}

// The length of the white space that a text begins with, as Python's str.strip() has it.
std::size_t blank_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const unsigned first = byte(0);
  if ((first >= 0x09 && first <= 0x0D) || (first >= 0x1C && first <= 0x20)) return 1;
  if (first == 0xC2 && (byte(1) == 0x85 || byte(1) == 0xA0)) return 2;
  const unsigned third = byte(2);
  const bool is_blank =
      (first == 0xE1 && byte(1) == 0x9A && third == 0x80) ||  // U+1680
      (first == 0xE2 && byte(1) == 0x80 &&  // U+2000 to U+200A, U+2028, U+2029, U+202F
       ((third >= 0x80 && third <= 0x8A) || third == 0xA8 || third == 0xA9 || third == 0xAF)) ||
      (first == 0xE2 && byte(1) == 0x81 && third == 0x9F) ||  // U+205F
      (first == 0xE3 && byte(1) == 0x80 && third == 0x80);    // U+3000
  return is_blank ? 3 : 0;
}

std::string_view stripped(std::string_view text) {
  while (const std::size_t blank = blank_length(text)) text.remove_prefix(blank);
  const auto ends_blank = [&](std::size_t bytes) {
    return text.size() >= bytes && blank_length(text.substr(text.size() - bytes)) == bytes;
  };
  while (true) {
    const std::size_t bytes = ends_blank(1) ? 1 : ends_blank(2) ? 2 : ends_blank(3) ? 3 : 0;
    if (bytes == 0) return text;
    text.remove_suffix(bytes);
  }
}

class Renderer {
 public:
  void control(std::string_view token, bool is_learned = false) { add(token, true, is_learned); }
  void text(std::string_view text, bool is_learned = false) {
    if (!text.empty()) add(text, false, is_learned);
  }
  [[nodiscard]] ChatText take() { return std::move(made_); }

 private:
  void add(std::string_view text, bool is_control, bool is_learned) {
    made_.text += text;
    made_.spans.push_back({made_.text.size(), is_control, is_learned});
  }

  ChatText made_;
};

bool is_answer(const ChatMessage& message) {
  return message.role == "assistant";
}

void render_chatml(Renderer& to, std::span<const ChatMessage> messages, bool asks) {
  for (const ChatMessage& message : messages) {
    const bool is_learned = is_answer(message) && message.is_learned;
    to.control("<|im_start|>");
    to.text(message.role + "\n");
    to.text(message.content, is_learned);
    to.control("<|im_end|>", is_learned);
    to.text("\n");
  }
  if (!asks) return;
  to.control("<|im_start|>");
  to.text("assistant\n");
}

void render_llama3(Renderer& to, std::span<const ChatMessage> messages, bool asks) {
  const auto header = [&](std::string_view role) {
    to.control("<|start_header_id|>");
    to.text(role);
    to.control("<|end_header_id|>");
    to.text("\n\n");
  };
  to.control("<|begin_of_text|>");
  for (const ChatMessage& message : messages) {
    const bool is_learned = is_answer(message) && message.is_learned;
    header(message.role);
    to.text(stripped(message.content), is_learned);
    to.control("<|eot_id|>", is_learned);
  }
  if (asks) header("assistant");
}

void render_mistral(Renderer& to, std::span<const ChatMessage> messages) {
  std::optional<std::string> system;
  if (messages.front().role == "system") {
    system = messages.front().content + "\n\n";
    messages = messages.subspan(1);
  }
  to.control("<s>");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (is_answer(message) != (i % 2 == 1) || message.role == "system") {
      throw DataError("its message " + std::to_string(i + (system ? 1 : 0)) + " is of the role " +
                          quote(message.role) +
                          ", and with template = \"mistral\" user and assistant take turns",
                      "put messages of one role together; a system message comes first");
    }
    if (is_answer(message)) {
      to.text(" " + std::string(stripped(message.content)), message.is_learned);
      to.control("</s>", message.is_learned);
      continue;
    }
    to.control("[INST]");
    to.text(" " + (i == 0 ? system.value_or("") : "") + message.content);
    to.control("[/INST]");
  }
}

ChatText render(ChatTemplate chat_template, std::span<const ChatMessage> messages, bool asks) {
  if (messages.empty()) throw DataError("it has no messages");
  Renderer to;
  switch (chat_template) {
    case ChatTemplate::kChatml:
      render_chatml(to, messages, asks);
      break;
    case ChatTemplate::kLlama3:
      render_llama3(to, messages, asks);
      break;
    case ChatTemplate::kMistral:
      render_mistral(to, messages);
      break;
  }
  return to.take();
}

// Finds the tokens of a template in a text from left to right, each byte looked at once a token.
class TokenScan {
 public:
  TokenScan(std::string_view text, const Marks& marks) : text_(text) {
    for (const Tokens* const each : {&marks.tokens, &marks.optional}) {
      for (const std::string_view token : *each) found_.push_back({token, text.find(token)});
    }
  }
  struct Found {
    std::string_view token;
    std::size_t begin = 0;  // npos: there is none
  };
  // Returns the first that begins at `from` or behind it.
  [[nodiscard]] Found next(std::size_t from) {
    for (Found& each : found_) {
      if (each.begin < from) each.begin = text_.find(each.token, from);
    }
    return *std::ranges::min_element(found_, {}, &Found::begin);
  }

 private:
  std::string_view text_;
  std::vector<Found> found_;
};

}  // namespace

ChatText render_chat(ChatTemplate chat_template, std::span<const ChatMessage> messages) {
  if (!messages.empty() && std::ranges::none_of(messages, [](const ChatMessage& message) {
        return is_answer(message) && message.is_learned;
      })) {
    throw DataError("it has no message of the assistant to learn from",
                    "a conversation needs one; take the line out");
  }
  return render(chat_template, messages, /*asks=*/false);
}

ChatText render_prompt(ChatTemplate chat_template, std::span<const ChatMessage> messages) {
  return render(chat_template, messages, /*asks=*/true);
}

std::vector<TextSpan> spans_of_rendered(ChatTemplate chat_template, std::string_view text) {
  const Marks& marks = marks_of(chat_template);
  std::vector<TextSpan> spans;
  bool is_learned = false;
  const auto add = [&](std::size_t end, bool is_control, bool learned) {
    if (end > (spans.empty() ? 0 : spans.back().end)) {
      spans.push_back({end, is_control, learned, Specials::kAreTokens});
    }
  };
  TokenScan scan(text, marks);
  std::size_t learn_from = std::string_view::npos;
  for (std::size_t at = 0; at < text.size();) {
    const TokenScan::Found found = scan.next(at);
    const std::size_t end = std::min(found.begin, text.size());
    if (learn_from <= end) {
      add(learn_from, false, false);
      is_learned = true;
      learn_from = std::string_view::npos;
    }
    add(end, false, is_learned);
    at = end;
    if (end == text.size()) break;
    if (text.substr(end).starts_with(marks.begin_turn)) {
      learn_from = end + marks.begin_turn.size();
    }
    at += found.token.size();
    const bool ends = std::ranges::find(marks.end_turns, found.token) != marks.end_turns.end();
    add(at, true, is_learned && ends);
    is_learned = false;
  }
  if (std::ranges::none_of(spans, &TextSpan::is_learned)) {
    throw DataError("it has no words of the assistant, which stand behind " +
                        shown_path(std::string(marks.begin_turn)),
                    "data.template says how the text was rendered");
  }
  return spans;
}

std::span<const std::string_view> ends_of_turn(ChatTemplate chat_template) {
  return marks_of(chat_template).end_turns;
}

void check_chat_tokenizer(ChatTemplate chat_template, const Tokenizer& tokenizer,
                          std::string_view tokenizer_name) {
  for (const std::string_view token : marks_of(chat_template).tokens) {
    if (tokenizer.token(token)) continue;
    const auto name = names_of<ChatTemplate>()[static_cast<std::size_t>(chat_template)];
    throw DataError("the tokenizer " + quote(tokenizer_name) + " has no token " +
                        std::string(token) + ", which template = \"" + std::string(name) +
                        "\" is written with",
                    "data.tokenizer is that of the model that is trained; choose its template");
  }
}

}  // namespace troika
