// The token shard, our file format for tokenised documents: made once, then memory-mapped by every
// rank, or read in an object store where samples need it. This header is its reader over any bytes,
// with every field checked before it is used; shard_writer.h writes it. All numbers are
// little-endian:
//
//   byte  size
//      0     8  "TROIKATK"
//      8     4  version: 1, or 2 where some tokens are no targets
//     12     4  bytes a token: 1, 2 or 4
//     16     8  vocabulary size: every token id is below it; at most 2^31 and 256^(bytes a token)
//     24     8  documents, D
//     32     8  tokens, T
//     40     8  bytes of text that the tokens stand for; 0: not known
//     48     8  largest token id
//     56     8  the id that goes between two documents; it is not stored between them
//     64     8  hash of the tokenizer; 0: not known
//     72     4  of version 2: 1 where the id between documents is no target, else 0
//     76    44  zeros
//    120     8  XXH64 with seed 0 of bytes 0 to 119
//    128        T token ids, then zeros up to a multiple of 8
//               of version 2: T bits, the lowest of a byte first, 1 where the token is a target,
//                 then zeros up to a multiple of 8 bytes
//               D + 1 numbers of 8 bytes: where each document begins, counted in tokens; the last
//                 is T
//               D numbers of 8 bytes: the document's key (document_source.h), which decides on
//                 which side of the held-out split it falls
//
// and nothing behind that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace troika {

inline constexpr std::size_t kShardHeaderBytes = 128;

struct TokenShardHeader {
  std::uint32_t token_bytes = 1;
  std::uint64_t vocab_size = 0;
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  std::uint64_t text_bytes = 0;
  std::uint64_t largest_id = 0;
  std::uint64_t separator = 0;
  std::uint64_t tokenizer = 0;
  bool has_mask = false;  // version 2
  bool separator_is_target = true;

  bool operator==(const TokenShardHeader&) const = default;
};

// Returns the 128 bytes of a header, checksum included.
[[nodiscard]] std::array<std::byte, kShardHeaderBytes> encode_header(
    const TokenShardHeader& header);

// Returns the number of zero bytes behind the tokens.
[[nodiscard]] constexpr std::uint64_t shard_padding(std::uint64_t token_section_bytes) {
  return (8 - token_section_bytes % 8) % 8;
}

// Returns the bytes of the mask of so many tokens.
[[nodiscard]] constexpr std::uint64_t mask_bytes(std::uint64_t tokens) {
  return (tokens / 64 + (tokens % 64 != 0 ? 1 : 0)) * 8;
}

// Fills `out` with the bytes of a file from `offset` on, which are all inside it. Thread safe.
using ReadBytes = std::function<void(std::uint64_t offset, std::span<std::byte> out)>;

// A shard in memory, which must outlive this, or one whose token ids stay in their file. Const
// access is thread safe.
class TokenShard {
 public:
  // Checks everything but the token ids themselves. Throws DataError, naming `name` and what is
  // wrong: no shard at all, another version, truncated or too long, a damaged header, numbers that
  // do not fit together, documents out of order.
  TokenShard(std::span<const std::byte> bytes, std::string name);
  // Opens a shard in a file of this size likewise. Takes 16 bytes of memory a document, and a bit a
  // token in version 2, and calls `read` for the ids that are asked for. Throws what `read` throws.
  TokenShard(std::uint64_t size, ReadBytes read, std::string name);
  TokenShard(TokenShard&&) = default;  // the views of own tables stay where they are

  [[nodiscard]] const TokenShardHeader& header() const { return header_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  // Returns the number of tokens of a document.
  [[nodiscard]] std::uint64_t length(std::uint64_t document) const {
    return entry(begins_, document + 1) - entry(begins_, document);
  }
  [[nodiscard]] std::uint64_t key(std::uint64_t document) const { return entry(keys_, document); }
  // Reads tokens [first, first + out.size()) of a document, which must lie inside it.
  void read(std::uint64_t document, std::uint64_t first, std::span<std::int64_t> out) const;
  // Says likewise of tokens whether they are targets: 1, or 0.
  void read_mask(std::uint64_t document, std::uint64_t first, std::span<char> out) const;

 private:
  // Reads a table entry, which may be unaligned when the bytes are not a mapping.
  [[nodiscard]] static std::uint64_t entry(std::span<const std::byte> table, std::uint64_t index);
  [[noreturn]] void fail(const std::string& what, std::string hint = {}) const;
  // Reads the header of a file of this size from its first bytes; returns the bytes of its ids.
  std::uint64_t parse_head(std::span<const std::byte> head, std::uint64_t size);
  void parse_header(std::span<const std::byte> bytes);
  void check_header() const;
  // Takes what lies behind the ids.
  void take_tables(std::span<const std::byte> bytes);
  void check_mask() const;
  void check_documents() const;

  std::string name_;
  TokenShardHeader header_;
  std::span<const std::byte> tokens_;  // empty where `read_` has them
  ReadBytes read_;
  std::vector<std::byte> own_tables_;
  std::span<const std::byte> mask_;  // empty in version 1
  std::span<const std::byte> begins_;
  std::span<const std::byte> keys_;
};

}  // namespace troika
