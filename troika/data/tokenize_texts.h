// Turns texts into token ids on ATen's intra-op threads, whatever their sizes, in their order.
#pragma once

#include <troika/data/text_reader.h>
#include <troika/data/tokenizer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troika {

struct TokenizedPart {
  std::size_t document = 0;
  bool last = false;           // of its document
  std::size_t text_bytes = 0;  // of this part
  std::size_t not_utf8 = 0;    // of these bytes: what SentencePiece reads as U+FFFD
  std::vector<std::int32_t> ids;
  std::vector<char> are_targets;  // 1 or 0 for each id; empty: all are
  // The last part of a document has document_key() of the whole and the bytes of its text
  // that is to be learned.
  std::uint64_t key = 0;
  std::int64_t document_bytes = 0;
};

// Calls `sink` on the calling thread for every part of every text, in order. Its arguments do not
// depend on the number of threads. Takes memory for 1 MiB of text for each thread, and its ids, at
// a time. Throws the exceptions of `reader` and `sink`.
void tokenize_texts(TextReader& reader, const Tokenizer& tokenizer,
                    const std::function<void(const TokenizedPart&)>& sink);

// Counts what is no UTF-8 in the parts that it is told of.
class NotUtf8 {
 public:
  void add(const TokenizedPart& part) {
    if (part.not_utf8 == 0) return;
    bytes_ += part.not_utf8;
    if (documents_ > 0 && latest_ == part.document) return;
    if (documents_++ == 0) first_ = part.document;
    latest_ = part.document;
  }
  // Says it of what `reader` has read, in a sentence without a full stop; empty where all is UTF-8.
  [[nodiscard]] std::string describe(const TextReader& reader) const;

 private:
  std::size_t bytes_ = 0, documents_ = 0, first_ = 0, latest_ = 0;
};

// Returns lines to train a tokenizer on, until they make up `max_bytes`. Long lines are cut, empty
// ones left out.
[[nodiscard]] LineReader training_lines(std::unique_ptr<TextReader> reader, std::int64_t max_bytes);

}  // namespace troika
