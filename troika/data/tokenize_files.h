// Turns text files into token ids on ATen's intra-op threads, whatever their sizes, in the order of
// the files.
#pragma once

#include <troika/data/find_files.h>
#include <troika/data/tokenizer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace troika {

struct TokenizedPart {
  std::size_t file = 0;
  bool last = false;           // of its file
  std::size_t text_bytes = 0;  // of this part
  std::vector<std::int32_t> ids;
};

// Calls `sink` on the calling thread for every part of every file, in order. What it gets does not
// depend on the number of threads. Memory: 1 MiB of text for each thread, and its ids, at a time.
// Throws DataError naming a file that cannot be read, and what `sink` throws.
void tokenize_files(std::span<const FoundFile> files, const Tokenizer& tokenizer,
                    const std::function<void(const TokenizedPart&)>& sink);

// Lines to train a tokenizer on: from the files in a fixed shuffled order, until they make up
// `max_bytes`; long lines are cut, empty ones left out. `files` must outlive it.
[[nodiscard]] LineReader training_lines(std::span<const FoundFile> files, std::int64_t max_bytes);

}  // namespace troika
