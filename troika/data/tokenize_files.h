// Turns text files into token ids on ATen's intra-op threads, whatever their sizes, in the order of
// the files.
#pragma once

#include <troika/data/find_files.h>
#include <troika/data/tokenizer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace troika {

struct TokenizedPart {
  std::size_t file = 0;
  bool last = false;           // of its file
  std::size_t text_bytes = 0;  // of this part
  std::size_t not_utf8 = 0;    // of these bytes: what SentencePiece reads as U+FFFD
  std::vector<std::int32_t> ids;
};

// Calls `sink` on the calling thread for every part of every file, in order. Its arguments do not
// depend on the number of threads. Takes memory for 1 MiB of text for each thread, and its ids, at
// a time. Throws DataError naming a file that cannot be read, and the exceptions of `sink`.
void tokenize_files(std::span<const FoundFile> files, const Tokenizer& tokenizer,
                    const std::function<void(const TokenizedPart&)>& sink);

// Counts what is no UTF-8 in the parts that it is told of.
class NotUtf8 {
 public:
  void add(const TokenizedPart& part) {
    if (part.not_utf8 == 0) return;
    bytes_ += part.not_utf8;
    files_.insert(part.file);
  }
  // Says it of `files`, in a sentence without a full stop; empty where all is UTF-8.
  [[nodiscard]] std::string describe(std::span<const FoundFile> files) const;

 private:
  std::size_t bytes_ = 0;
  std::set<std::size_t> files_;
};

// Returns lines to train a tokenizer on, from the files in a fixed shuffled order, until they make
// up `max_bytes`. Long lines are cut, empty ones left out. `files` must outlive it.
[[nodiscard]] LineReader training_lines(std::span<const FoundFile> files, std::int64_t max_bytes);

}  // namespace troika
