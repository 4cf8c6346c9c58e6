// What every kind of stored data is to the rest of this folder: numbered documents of token ids
// that can be read at any place.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace troika {

// Const access is thread safe.
class DocumentSource {
 public:
  virtual ~DocumentSource() = default;

  [[nodiscard]] virtual std::int64_t documents() const = 0;
  // Returns the tokens of a document, without a separator.
  [[nodiscard]] virtual std::int64_t length(std::int64_t document) const = 0;
  // Returns whether some tokens are no targets, such as those of a prompt.
  [[nodiscard]] virtual bool has_mask() const { return false; }
  // Says of tokens [first, first + are_targets.size()) of a document whether they are targets: 1,
  // or 0.
  virtual void read_mask(std::int64_t /*document*/, std::int64_t /*first*/,
                         std::span<char> are_targets) const {
    std::ranges::fill(are_targets, 1);
  }
  // Returns whether the id behind a document is a target.
  [[nodiscard]] virtual bool separator_is_target() const { return true; }
  // Reads tokens [first, first + out.size()) of a document, which must lie inside it. Throws
  // DataError naming the file when they cannot be read any more.
  virtual void read(std::int64_t document, std::int64_t first,
                    std::span<std::int64_t> out) const = 0;
  // Returns document_key() of the text, which decides on which side of the held-out split a
  // document falls.
  [[nodiscard]] virtual std::uint64_t key(std::int64_t document) const = 0;
  // Returns the bytes of text that a document stands for; 0 if unknown.
  [[nodiscard]] virtual double text_bytes(std::int64_t document) const = 0;
  // Returns the id that goes between documents.
  [[nodiscard]] virtual std::int64_t separator() const = 0;
  // Returns an upper bound of the ids, as far as the source knows without a scan.
  [[nodiscard]] virtual std::int64_t largest_id() const = 0;
  // Returns a hash of what opening the source has read of its file number `file`; 0: nothing.
  [[nodiscard]] virtual std::uint64_t head_of_file(std::size_t file) const { return 0; }
  // Returns Tokenizer::fingerprint() of the tokenizer that made the ids; 0 if unknown.
  [[nodiscard]] virtual std::uint64_t tokenizer() const = 0;
  // Returns whether documents are read from an object store, so that reading one is to wait.
  [[nodiscard]] virtual bool is_remote() const { return false; }
  // Returns a warning for the user about the documents; empty if there is none.
  [[nodiscard]] virtual std::string warning() const { return {}; }
  // Names the document for error messages: its file and, inside a shard, its number.
  [[nodiscard]] virtual std::string describe(std::int64_t document) const = 0;
};

// The number of bytes at the head of a document that its key depends on.
inline constexpr std::size_t kKeyBytes = 4096;

// Returns the key of a document: a hash of its size in bytes and of its first kKeyBytes bytes (or
// all, if fewer). It depends on the text, not on the tokens or the path. It is the same on every
// machine, under any name, as text and as token shard.
[[nodiscard]] std::uint64_t document_key(std::uint64_t size, std::span<const std::byte> head);

// Returns whether the document with this key is held out. It is a pure function: a document never
// changes sides unless the fraction does, and a larger fraction only adds held-out documents.
[[nodiscard]] bool is_held_out(std::uint64_t key, double held_out_fraction);

// Throws DataError naming the first document that holds an id outside [0, vocab_size), the id, and
// vocab_size. Reads the documents only if the source's largest id makes that necessary, on ATen's
// intra-op threads.
void check_vocabulary(const DocumentSource& source, std::int64_t vocab_size);

// Throws the DataError of check_vocabulary(), if any of `ids` is outside [0, vocab_size).
void check_ids(const DocumentSource& source, std::int64_t document,
               std::span<const std::int64_t> ids, std::int64_t vocab_size);

}  // namespace troika
