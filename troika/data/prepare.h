// Tokenises text files into token shards, once for all runs: what `troika data prepare` does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace troika {

// The SentencePiece model among the shards that it made.
inline constexpr const char* kTokenizerFile = "tokenizer.model";

struct PrepareOptions {
  // The folder to make: shard-00000.tokens and so on, and tokenizer.model unless the tokens are
  // bytes. Must not exist, or be empty.
  std::filesystem::path out;
  std::vector<std::string> paths;   // files and globs (find_files.h)
  std::string tokenizer = "bytes";  // or the path of a SentencePiece model
  // Above 0: train a byte-pair model of this many ids on the text first, and use that.
  std::int64_t train_vocab_size = 0;
  // A shard is closed by the document that brings it to this many tokens.
  std::int64_t shard_tokens = std::int64_t{1} << 28;
};

struct PrepareReport {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t text_bytes = 0;
  std::int64_t vocab_size = 0;                // of the tokenizer: what model.vocab_size must reach
  std::vector<std::filesystem::path> shards;  // where they now are
  std::filesystem::path tokenizer;            // the model's file; empty for bytes
  std::vector<std::string> warnings;          // of what the user might not expect
};

// Called from time to time, on the thread that called prepare_tokens, with the bytes of text done
// and in all. What it throws ends the work, and nothing is left behind.
using PrepareProgress = std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)>;

// Reads every file, splits the work over ATen's intra-op threads, and gives the same bytes whatever
// their number. Everything is written beside `out` under a temporary name; when all of it is
// durable it takes its place by one rename, so `out` is whole or not there. Throws UsageError when
// `out` is taken or an option is out of range, DataError naming a file that cannot be read,
// StorageError when the disk is full.
PrepareReport prepare_tokens(const PrepareOptions& options, const PrepareProgress& progress = {});

}  // namespace troika
