#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/random.h>
#include <troika/data/sources/tokens/token_documents.h>
#include <troika/data/sources/tokens/token_shard.h>

#include <algorithm>
#include <vector>

namespace troika {
namespace {

struct MappedShard {
  explicit MappedShard(const std::string& path) : file(path), shard(file.bytes(), path) {}

  MappedFile file;  // a mapping stays where it is when its owner moves
  TokenShard shard;
};

class TokenDocuments final : public DocumentSource {
 public:
  explicit TokenDocuments(std::span<const FoundFile> files) {
    shards_.reserve(files.size());
    for (const FoundFile& file : files) add(file.path);
  }

  [[nodiscard]] std::int64_t documents() const override { return first_document_.back(); }
  [[nodiscard]] std::int64_t length(std::int64_t document) const override {
    const Location location = find(document);
    return static_cast<std::int64_t>(location.shard->length(location.document));
  }
  void read(std::int64_t document, std::int64_t first, std::span<std::int64_t> out) const override {
    const Location location = find(document);
    location.shard->read(location.document, static_cast<std::uint64_t>(first), out);
  }
  [[nodiscard]] std::uint64_t key(std::int64_t document) const override {
    const Location location = find(document);
    return location.shard->key(location.document);
  }
  // A shard has the key and the length of each document.
  [[nodiscard]] std::uint64_t head_of_file(std::size_t file) const override {
    const TokenShard& shard = shards_[file].shard;
    std::uint64_t hash = mix_bits(shard.header().documents);
    for (std::uint64_t document = 0; document < shard.header().documents; ++document) {
      hash = mix_bits(hash ^ shard.key(document)) + shard.length(document);
    }
    return hash;
  }
  [[nodiscard]] double text_bytes(std::int64_t document) const override {
    const Location location = find(document);
    const TokenShardHeader& header = location.shard->header();
    return static_cast<double>(header.text_bytes) / static_cast<double>(header.tokens) *
           static_cast<double>(location.shard->length(location.document));
  }
  [[nodiscard]] std::int64_t separator() const override {
    return static_cast<std::int64_t>(shards_.front().shard.header().separator);
  }
  [[nodiscard]] std::int64_t largest_id() const override {
    std::uint64_t largest = 0;
    for (const MappedShard& s : shards_) largest = std::max(largest, s.shard.header().largest_id);
    return static_cast<std::int64_t>(largest);
  }
  [[nodiscard]] std::uint64_t tokenizer() const override {
    return shards_.front().shard.header().tokenizer;
  }
  [[nodiscard]] std::string describe(std::int64_t document) const override {
    const Location location = find(document);
    return shown_path(location.shard->name()) + ", document " + std::to_string(location.document) +
           ",";
  }

 private:
  struct Location {
    const TokenShard* shard;
    std::uint64_t document;
  };

  void add(const std::string& path) {
    const TokenShard& shard = shards_.emplace_back(path).shard;
    first_document_.push_back(first_document_.back() +
                              static_cast<std::int64_t>(shard.header().documents));
    const TokenShard& first = shards_.front().shard;
    if (shard.header().tokenizer != first.header().tokenizer ||
        shard.header().separator != first.header().separator) {
      throw DataError("the token shards " + shown_path(first.name()) + " and " + shown_path(path) +
                          " were made by different tokenizers",
                      "prepare them again with the same --tokenizer");
    }
  }

  [[nodiscard]] Location find(std::int64_t document) const {
    check(document >= 0 && document < documents(), "a document outside its source");
    const auto behind =
        std::upper_bound(first_document_.begin(), first_document_.end(), document) - 1;
    return {&shards_[static_cast<std::size_t>(behind - first_document_.begin())].shard,
            static_cast<std::uint64_t>(document - *behind)};
  }

  std::vector<MappedShard> shards_;
  std::vector<std::int64_t> first_document_ = {0};  // of each shard, and how many there are
};

}  // namespace

std::unique_ptr<DocumentSource> open_token_documents(std::span<const FoundFile> files) {
  return std::make_unique<TokenDocuments>(files);
}

}  // namespace troika
