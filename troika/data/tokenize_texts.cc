#include <ATen/Parallel.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/data/chat/encode_spans.h>
#include <troika/data/document_source.h>
#include <troika/data/tokenize_texts.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>

namespace troika {
namespace {

// A second or so of SentencePiece: how long a caller waits between two reports.
constexpr std::size_t kBatchBytesPerThread = std::size_t{1} << 20;
constexpr std::size_t kMaxLineBytes = 4096;

// Computes the keys of documents whose parts it sees in order.
class DocumentKeys {
 public:
  void add(const TextPart& part, TokenizedPart& to) {
    if (head_.size() < kKeyBytes) head_ += part.text.substr(0, kKeyBytes - head_.size());
    bytes_ += static_cast<std::int64_t>(part.text.size());
    learned_bytes_ += learned_bytes(part);
    if (!part.last) return;
    to.document_bytes = learned_bytes_;
    to.key = document_key(static_cast<std::uint64_t>(bytes_), std::as_bytes(std::span(head_)));
    head_.clear();
    bytes_ = learned_bytes_ = 0;
  }

 private:
  static std::int64_t learned_bytes(const TextPart& part) {
    if (part.spans.empty()) return part.is_prompt ? 0 : std::ssize(part.text);
    std::size_t bytes = 0, begin = 0;
    for (const TextSpan& span : part.spans) {
      if (span.is_learned && !span.is_control) bytes += span.end - begin;
      begin = span.end;
    }
    return static_cast<std::int64_t>(bytes);
  }

  std::string head_;
  std::int64_t bytes_ = 0, learned_bytes_ = 0;
};

void encode_conversation(const TextReader& reader, const Tokenizer& tokenizer, const TextPart& text,
                         TokenizedPart& to) {
  try {
    EncodedSpans encoded = encode_spans(tokenizer, text.text, text.spans);
    to.ids = std::move(encoded.ids);
    to.are_targets = std::move(encoded.are_learned);
  } catch (const DataError& error) {
    throw DataError(reader.describe(text.document) + ": " + error.what(), error.hint());
  }
}

// Threads take one part after the other, because parts differ in size.
void encode(const TextReader& reader, const Tokenizer& tokenizer, std::span<const TextPart> texts,
            std::span<TokenizedPart> parts) {
  std::atomic<std::size_t> next = 0;
  at::parallel_for(0, at::get_num_threads(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::size_t i = next++; i < texts.size(); i = next++) {
      const TextPart& text = texts[i];
      parts[i].not_utf8 = count_not_utf8(text.text);
      if (!text.spans.empty()) {
        encode_conversation(reader, tokenizer, text, parts[i]);
        continue;
      }
      parts[i].ids = tokenizer.encode(text.text);
      if (text.is_prompt) parts[i].are_targets.assign(parts[i].ids.size(), 0);
    }
  });
}

}  // namespace

void tokenize_texts(TextReader& reader, const Tokenizer& tokenizer,
                    const std::function<void(const TokenizedPart&)>& sink) {
  const std::size_t batch_bytes =
      kBatchBytesPerThread * static_cast<std::size_t>(at::get_num_threads());
  DocumentKeys keys;
  std::vector<TextPart> texts;
  std::vector<TokenizedPart> parts;
  std::size_t bytes = 0;
  const auto flush = [&] {
    encode(reader, tokenizer, texts, parts);
    for (const TokenizedPart& part : parts) sink(part);
    texts.clear();
    parts.clear();
    bytes = 0;
  };
  while (std::optional<TextPart> part = reader.next()) {
    bytes += part->text.size();
    TokenizedPart& tokenized = parts.emplace_back();
    tokenized.document = part->document;
    tokenized.last = part->last;
    tokenized.text_bytes = part->text.size();
    keys.add(*part, tokenized);
    texts.push_back(std::move(*part));
    if (bytes >= batch_bytes) flush();
  }
  flush();
}

std::string NotUtf8::describe(const TextReader& reader) const {
  if (bytes_ == 0) return "";
  return plural(static_cast<std::int64_t>(bytes_), "byte") + " of " +
         plural(static_cast<std::int64_t>(documents_), "document") +
         (bytes_ == 1 ? " is" : " are") + " no UTF-8, which the tokenizer reads as U+FFFD; " +
         reader.describe(first_) + " is the first: `iconv -f latin1 -t utf8` may mend it";
}

LineReader training_lines(std::unique_ptr<TextReader> reader, std::int64_t max_bytes) {
  struct State {
    std::unique_ptr<TextReader> reader;
    std::string text;
    std::size_t position = 0;
    std::int64_t left;
  };
  const auto state = std::make_shared<State>();
  state->left = max_bytes;
  state->reader = std::move(reader);
  return [state]() -> std::optional<std::string> {
    while (state->left > 0) {
      if (state->position == state->text.size()) {
        std::optional<TextPart> part = state->reader->next();
        if (!part) return std::nullopt;
        state->text = std::move(part->text);
        state->position = 0;
      }
      const std::string_view rest = std::string_view(state->text).substr(state->position);
      const std::size_t line_end = std::min(rest.find('\n'), rest.size());
      const std::size_t length = part_length(rest.substr(0, line_end), kMaxLineBytes);
      // The line end itself goes too, once the line is used up.
      state->position += length < line_end ? length : std::min(line_end + 1, rest.size());
      if (length == 0) continue;
      state->left -= static_cast<std::int64_t>(length);
      return std::string(rest.substr(0, length));
    }
    return std::nullopt;
  };
}

}  // namespace troika
