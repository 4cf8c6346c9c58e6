#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/random.h>
#include <troika/data/overlapped.h>
#include <troika/data/sources/tokens/token_documents.h>
#include <troika/data/sources/tokens/token_shard.h>
#include <troika/storage/object_store.h>
#include <troika/storage/remote_file.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace troika {
namespace {

// A shard with what its ids are read from.
class OpenShard {
 public:
  explicit OpenShard(const FoundFile& file) {
    if (troika::is_remote(file.path)) {
      remote_ = std::make_unique<const RemoteFile>(file.path);
      const auto read = [remote = remote_.get()](std::uint64_t offset, std::span<std::byte> out) {
        remote->read_at(static_cast<std::int64_t>(offset), out);
      };
      shard_.emplace(static_cast<std::uint64_t>(remote_->size()), read, file.path);
    } else {
      mapped_.emplace(file.path);
      shard_.emplace(mapped_->bytes(), file.path);
    }
  }

  [[nodiscard]] const TokenShard& shard() const { return *shard_; }
  [[nodiscard]] bool is_remote() const { return remote_ != nullptr; }

 private:
  std::unique_ptr<const RemoteFile> remote_;
  std::optional<MappedFile> mapped_;  // a mapping stays where it is when its owner moves
  std::optional<TokenShard> shard_;
};

// Opening a shard of a store is some requests, so those of several are under way at once.
std::vector<std::unique_ptr<const OpenShard>> open_shards(std::span<const FoundFile> files) {
  std::vector<std::unique_ptr<const OpenShard>> shards(files.size());
  const auto open = [&](std::int64_t i) {
    const auto place = static_cast<std::size_t>(i);
    shards[place] = std::make_unique<const OpenShard>(files[place]);
  };
  if (std::ranges::any_of(files, [](const FoundFile& file) { return is_remote(file.path); })) {
    run_overlapped(std::ssize(files), open);
  } else {
    for (std::int64_t i = 0; i < std::ssize(files); ++i) open(i);
  }
  return shards;
}

class TokenDocuments final : public DocumentSource {
 public:
  explicit TokenDocuments(std::span<const FoundFile> files) : shards_(open_shards(files)) {
    for (const auto& each : shards_) add(each->shard());
    is_remote_ = std::ranges::any_of(shards_, [](const auto& each) { return each->is_remote(); });
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
  [[nodiscard]] bool has_mask() const override {
    return std::ranges::any_of(shards_,
                               [](const auto& each) { return each->shard().header().has_mask; });
  }
  void read_mask(std::int64_t document, std::int64_t first,
                 std::span<char> are_targets) const override {
    const Location location = find(document);
    location.shard->read_mask(location.document, static_cast<std::uint64_t>(first), are_targets);
  }
  [[nodiscard]] bool separator_is_target() const override {
    return shards_.front()->shard().header().separator_is_target;
  }
  [[nodiscard]] std::uint64_t key(std::int64_t document) const override {
    const Location location = find(document);
    return location.shard->key(location.document);
  }
  // A shard has the key and the length of each document.
  [[nodiscard]] std::uint64_t head_of_file(std::size_t file) const override {
    const TokenShard& shard = shards_[file]->shard();
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
    return static_cast<std::int64_t>(shards_.front()->shard().header().separator);
  }
  [[nodiscard]] std::int64_t largest_id() const override {
    std::uint64_t largest = 0;
    for (const auto& s : shards_) largest = std::max(largest, s->shard().header().largest_id);
    return static_cast<std::int64_t>(largest);
  }
  [[nodiscard]] std::uint64_t tokenizer() const override {
    return shards_.front()->shard().header().tokenizer;
  }
  [[nodiscard]] bool is_remote() const override { return is_remote_; }
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

  void add(const TokenShard& shard) {
    first_document_.push_back(first_document_.back() +
                              static_cast<std::int64_t>(shard.header().documents));
    const TokenShard& first = shards_.front()->shard();
    if (shard.header().tokenizer != first.header().tokenizer ||
        shard.header().separator != first.header().separator) {
      throw DataError("the token shards " + shown_path(first.name()) + " and " +
                          shown_path(shard.name()) + " were made by different tokenizers",
                      "prepare them again with the same --tokenizer");
    }
    if (shard.header().separator_is_target != first.header().separator_is_target) {
      throw DataError("of the token shards " + shown_path(first.name()) + " and " +
                          shown_path(shard.name()) + " one has conversations, and one other text",
                      "give each a path of its own, with data.weights");
    }
  }

  [[nodiscard]] Location find(std::int64_t document) const {
    check(document >= 0 && document < documents(), "a document outside its source");
    const auto behind =
        std::upper_bound(first_document_.begin(), first_document_.end(), document) - 1;
    return {&shards_[static_cast<std::size_t>(behind - first_document_.begin())]->shard(),
            static_cast<std::uint64_t>(document - *behind)};
  }

  std::vector<std::unique_ptr<const OpenShard>> shards_;
  bool is_remote_ = false;
  std::vector<std::int64_t> first_document_ = {0};  // of each shard, and how many there are
};

}  // namespace

std::unique_ptr<DocumentSource> open_token_documents(std::span<const FoundFile> files) {
  return std::make_unique<TokenDocuments>(files);
}

}  // namespace troika
