#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/data/sources/text/column_documents.h>
#include <troika/data/sources/tokens/shard_writer.h>
#include <troika/data/sources/tokens/token_documents.h>
#include <troika/data/text_reader.h>
#include <troika/data/tokenize_texts.h>

#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

namespace troika {
namespace {

// A path in the folder for temporary files whose file goes with it.
class TemporaryPath {
 public:
  TemporaryPath() {
    std::random_device entropy;
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
    if (error) {
      throw StorageError("there is no folder for temporary files: " + error.message(),
                         "TMPDIR names one");
    }
    path_ = folder / ("troika-" + hex(std::uint64_t{entropy()} << 32 | entropy()) + ".tokens");
  }
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;
  ~TemporaryPath() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class ColumnDocuments final : public DocumentSource {
 public:
  ColumnDocuments(std::span<const FoundFile> files, const TextColumns& columns,
                  const Tokenizer& tokenizer)
      : reader_(read_text_columns(files, columns)), has_prompts_(!columns.prompt.empty()) {
    const TemporaryPath shard;
    write(shard.path(), tokenizer);
    const FoundFile file{shard.path().string(), 1};  // its mapping has its size
    tokens_ = open_token_documents(std::span(&file, 1));
  }

  [[nodiscard]] std::int64_t documents() const override { return tokens_->documents(); }
  [[nodiscard]] std::int64_t length(std::int64_t document) const override {
    return tokens_->length(document);
  }
  [[nodiscard]] std::int64_t prompt_length(std::int64_t document) const override {
    return has_prompts_ ? prompts_[static_cast<std::size_t>(document)] : 0;
  }
  void read(std::int64_t document, std::int64_t first, std::span<std::int64_t> out) const override {
    tokens_->read(document, first, out);
  }
  [[nodiscard]] std::uint64_t key(std::int64_t document) const override {
    return tokens_->key(document);
  }
  [[nodiscard]] double text_bytes(std::int64_t document) const override {
    return tokens_->text_bytes(document);
  }
  [[nodiscard]] std::int64_t separator() const override { return tokens_->separator(); }
  [[nodiscard]] std::int64_t largest_id() const override { return tokens_->largest_id(); }
  [[nodiscard]] std::uint64_t tokenizer() const override { return tokens_->tokenizer(); }
  [[nodiscard]] std::string warning() const override { return warning_; }
  [[nodiscard]] std::string describe(std::int64_t document) const override {
    return reader_->describe(rows_[static_cast<std::size_t>(document)]);
  }

 private:
  void write(const std::filesystem::path& path, const Tokenizer& tokenizer) {
    ShardWriter shard(path, header_for(tokenizer));
    NotUtf8 not_utf8;
    std::uint64_t before = 0;
    std::int32_t prompt = 0;
    tokenize_texts(*reader_, tokenizer, [&](const TokenizedPart& part) {
      not_utf8.add(part);
      shard.add_tokens(part.ids);
      if (part.is_prompt) prompt += static_cast<std::int32_t>(part.ids.size());
      if (!part.last || shard.tokens() == before) return;
      shard.end_document(part.key, static_cast<std::uint64_t>(part.document_bytes));
      rows_.push_back(part.document);
      if (has_prompts_) prompts_.push_back(std::exchange(prompt, 0));
      before = shard.tokens();
    });
    if (before == 0) {
      throw DataError("no row of the table has text in data.column", "name another column");
    }
    shard.finish();
    if (tokenizer.fingerprint() != open_tokenizer("bytes")->fingerprint()) {
      warning_ = not_utf8.describe(*reader_);
    }
  }

  std::unique_ptr<TextReader> reader_;
  bool has_prompts_;
  std::vector<std::int32_t> prompts_;  // tokens of each document
  std::vector<std::size_t> rows_;      // the number of each document that has tokens among all
  std::unique_ptr<DocumentSource> tokens_;
  std::string warning_;
};

}  // namespace

std::unique_ptr<DocumentSource> open_column_documents(std::span<const FoundFile> files,
                                                      const TextColumns& columns,
                                                      const Tokenizer& tokenizer) {
  return std::make_unique<ColumnDocuments>(files, columns, tokenizer);
}

}  // namespace troika
