// Writes one token shard (the format of token_shard.h), front to back.
#pragma once

#include <troika/base/file.h>
#include <troika/data/sources/tokens/token_shard.h>
#include <troika/data/tokenizer.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace troika {

// Returns the bytes that a token of this vocabulary takes in a shard: 1, 2 or 4.
[[nodiscard]] std::uint32_t token_bytes_for(std::uint64_t vocab_size);

// Returns what a shard says of the tokenizer that makes it.
[[nodiscard]] TokenShardHeader header_for(const Tokenizer& tokenizer, bool separator_is_target);

// Writes a token shard. Takes 16 bytes of memory a document, and a bit a token where some are no
// targets. Not atomic by itself: the file is a
// valid shard only after finish(), since its header is written last. All members throw StorageError
// naming the path.
class ShardWriter {
 public:
  // Takes vocab_size, separator, tokenizer and separator_is_target from `header`.
  ShardWriter(std::filesystem::path path, const TokenShardHeader& header);

  // Adds tokens to the current document; each below the vocabulary's size. `are_targets` says 1 or
  // 0 of each of them; empty: all are.
  void add_tokens(std::span<const std::int32_t> ids, std::span<const char> are_targets = {});
  // Ends the current document.
  void end_document(std::uint64_t key, std::uint64_t text_bytes);
  [[nodiscard]] std::uint64_t tokens() const { return header_.tokens; }

  // Writes tables and header and makes the file durable.
  void finish();

 private:
  template <class Token>
  void append(std::span<const std::int32_t> ids);
  void add_mask(std::size_t tokens, std::span<const char> are_targets);
  void flush();

  std::filesystem::path path_;
  TokenShardHeader header_;
  UniqueFd fd_;
  std::vector<std::byte> pending_;
  std::vector<std::uint64_t> mask_;  // bits, from the first token that is no target on
  std::vector<std::uint64_t> begins_ = {0};
  std::vector<std::uint64_t> keys_;
};

}  // namespace troika
