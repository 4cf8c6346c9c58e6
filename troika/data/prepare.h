// Tokenises text files, or a column of tables, into token shards, once for all runs: what `troika
// data prepare` does.
#pragma once

#include <troika/data/text_reader.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace troika {

// The name of the SentencePiece model's file among the shards that it made.
inline constexpr const char* kTokenizerFile = "tokenizer.model";

struct PrepareOptions {
  // The folder to make: shard-00000.tokens and so on, and tokenizer.model or tokenizer.json unless
  // the tokens are bytes. Must not exist, or be empty.
  std::filesystem::path out;
  std::vector<std::string> paths;   // files and globs (find_files.h)
  TextColumns columns;              // of tables, whose rows are the documents; else files are
  std::string tokenizer = "bytes";  // or a path, as open_tokenizer() takes
  // The number of ids of a byte-pair model to train on the text first, and to use. 0: none.
  std::int64_t train_vocab_size = 0;
  // The number of tokens that closes a shard: the document that reaches it is the shard's last.
  std::int64_t shard_tokens = std::int64_t{1} << 28;
};

struct PrepareReport {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t text_bytes = 0;
  std::int64_t vocab_size = 0;                // of the tokenizer: what model.vocab_size must reach
  std::vector<std::filesystem::path> shards;  // where they now are
  std::filesystem::path tokenizer;            // the model's file; empty for bytes
  bool stands_apart = false;                  // conversations: they must not be concatenated
  std::vector<std::string> warnings;          // of what the user might not expect
};

// Receives the bytes of text done and in all, from time to time, on the thread that called
// prepare_tokens(). An exception from it ends the work, and no file is left behind.
using PrepareProgress = std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)>;

// Reads every file, splits the work over ATen's intra-op threads, and gives the same bytes with any
// number of them. All files are written beside `out` under a temporary name. When they are durable,
// one rename moves them into place, so `out` is whole or not there. Throws UsageError when `out` is
// taken or an option is out of range, DataError naming a file that cannot be read, StorageError
// when the disk is full.
PrepareReport prepare_tokens(const PrepareOptions& options, const PrepareProgress& progress = {});

}  // namespace troika
