// Cuts the documents on one side of the held-out split into samples of a fixed length, as
// `data.pack` says:
//   concatenate  documents laid end to end with the separator behind each, cut every seq_len
//   tokens;
//                a sample's last target is the next one's first input, so every token but the very
//                first is a target exactly once
//   isolated     the same samples, with the number of the document at each position; the target
//   that
//                would lead from one document into the next does not count
//   pad          each document and the separator behind it begin a sample of their own and take as
//                many as they need
// Tokens that their source masks, such as those of a prompt, are no targets, either. A sample of
// which no target counts is left out.
// The rest of a sample that is not full holds the separator as input and kIgnoredTarget as target.
#pragma once

#include <troika/config/key.h>
#include <troika/data/document_source.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace troika {

// The way in which documents become samples: see above.
enum class Pack { kConcatenate, kIsolated, kPad };

template <>
std::span<const std::string_view> names_of<Pack>();

// The side of the data.
enum class Split { kTrain, kHeldOut };

// Lays documents end to end as tokens or samples and finds the one at a position. Takes 8 bytes of
// memory for kBlock documents: a table of 10^9 documents takes 125 MB.
class DocumentIndex {
 public:
  // Returns the tokens or samples of a document; 0 leaves it out.
  using Length = std::function<std::int64_t(std::int64_t document)>;
  struct Location {
    std::int64_t document = 0;
    std::int64_t offset = 0;  // tokens or samples into it
  };

  DocumentIndex(std::int64_t documents, Length length);

  [[nodiscard]] std::int64_t total() const { return total_; }
  // Finds `item`, which must be in [0, total()).
  [[nodiscard]] Location find(std::int64_t item) const;
  // Returns the next document that is not left out. There must be one.
  [[nodiscard]] std::int64_t next(std::int64_t document) const;

 private:
  static constexpr std::int64_t kBlock = 64;

  Length length_;
  std::vector<std::int64_t> block_begin_;  // tokens or samples before each block
  std::int64_t total_ = 0;
};

struct PackOptions {
  Pack pack = Pack::kConcatenate;
  std::int64_t seq_len = 0;
  std::int64_t vocab_size = 0;
  double held_out_fraction = 0;
};

// Const access is thread safe.
class PackedDocuments {
 public:
  PackedDocuments(std::shared_ptr<const DocumentSource> source, const PackOptions& options,
                  Split split);
  // The index refers to this object.
  PackedDocuments(const PackedDocuments&) = delete;
  PackedDocuments& operator=(const PackedDocuments&) = delete;

  [[nodiscard]] std::int64_t samples() const { return samples_; }
  [[nodiscard]] std::int64_t documents() const { return documents_; }
  // Return the targets that count, and the bytes of text, over all samples. 0 bytes: unknown.
  [[nodiscard]] std::int64_t targets() const { return targets_; }
  [[nodiscard]] double text_bytes() const { return text_bytes_; }

  // The memory for a sample, each [seq_len]; document_ids is empty unless `pack` is isolated.
  struct Sample {
    std::span<std::int64_t> inputs;
    std::span<std::int64_t> targets;
    std::span<std::int64_t> document_ids;
  };
  // Writes sample `index` of [0, samples()) and returns how many of its targets count. Throws
  // DataError naming file and document when a token id is outside the vocabulary or a file has
  // changed.
  std::int64_t fill(std::int64_t index, const Sample& sample) const;

 private:
  [[nodiscard]] bool is_here(std::int64_t document) const;
  [[nodiscard]] std::int64_t indexed_length(std::int64_t document) const;
  // A part of a document in a sample: ids from `offset` on, the separator behind it included.
  struct Stretch {
    std::int64_t document = 0;
    std::int64_t offset = 0;
    std::int64_t begin = 0;  // in the sample
    std::int64_t count = 0;
  };
  // Returns what the ids of a sample are of: seq_len + 1 of them, or fewer in the last.
  [[nodiscard]] std::vector<Stretch> stretches(std::int64_t index) const;
  // Returns which of these ids are targets, of seq_len + 1.
  [[nodiscard]] std::vector<char> targets_of(std::span<const Stretch> stretches) const;
  void read(const Stretch& stretch, std::span<std::int64_t> ids) const;
  // Counts targets, and leaves out samples without one. Reads the mask of all documents.
  void count_targets();

  std::shared_ptr<const DocumentSource> source_;
  PackOptions options_;
  Split split_;
  DocumentIndex index_;
  std::int64_t samples_ = 0;
  std::vector<std::int64_t> kept_;  // by sample, where some are left out
  std::int64_t documents_ = 0;
  std::int64_t targets_ = 0;
  double text_bytes_ = 0;
};

}  // namespace troika
