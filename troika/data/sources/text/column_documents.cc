#include <troika/base/error.h>
#include <troika/data/sources/text/column_documents.h>
#include <troika/data/sources/text/shared_tokens.h>
#include <troika/data/text_reader.h>

#include <mutex>
#include <utility>
#include <vector>

namespace troika {
namespace {

class ColumnDocuments final : public DocumentSource {
 public:
  ColumnDocuments(std::span<const FoundFile> files, const TextColumns& columns,
                  const Tokenizer& tokenizer, HostWork& host)
      : files_(files.begin(), files.end()), columns_(columns) {
    const auto open = [&] { return read_texts(files_, columns_); };
    TokenisedTexts texts = tokenise_once(host, open, tokenizer, Tokenless::kLeftOut);
    if (!texts.tokens) {
      throw DataError(columns.messages.empty() ? "no row of the table has text in data.column"
                                               : "the data files have no conversation",
                      "name another column, or other files");
    }
    tokens_ = std::move(texts.tokens);
    rows_ = std::move(texts.positions);
    if (tokenizer.fingerprint() != open_tokenizer("bytes")->fingerprint()) {
      warning_ = std::move(texts.warning);
    }
  }

  [[nodiscard]] std::int64_t documents() const override { return tokens_->documents(); }
  [[nodiscard]] std::int64_t length(std::int64_t document) const override {
    return tokens_->length(document);
  }
  [[nodiscard]] bool has_mask() const override { return tokens_->has_mask(); }
  void read_mask(std::int64_t document, std::int64_t first,
                 std::span<char> are_targets) const override {
    tokens_->read_mask(document, first, are_targets);
  }
  [[nodiscard]] bool separator_is_target() const override { return tokens_->separator_is_target(); }
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
  // Opens the tables again: only errors name rows.
  [[nodiscard]] std::string describe(std::int64_t document) const override {
    const std::scoped_lock lock(mutex_);
    if (!reader_) reader_ = read_texts(files_, columns_);
    return reader_->describe_position(rows_[static_cast<std::size_t>(document)]);
  }

 private:
  std::vector<FoundFile> files_;
  TextColumns columns_;
  std::vector<std::uint64_t> rows_;  // TextReader::position() of each document
  std::unique_ptr<DocumentSource> tokens_;
  std::string warning_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<TextReader> reader_;
};

}  // namespace

std::unique_ptr<DocumentSource> open_column_documents(std::span<const FoundFile> files,
                                                      const TextColumns& columns,
                                                      const Tokenizer& tokenizer, HostWork& host) {
  return std::make_unique<ColumnDocuments>(files, columns, tokenizer, host);
}

}  // namespace troika
