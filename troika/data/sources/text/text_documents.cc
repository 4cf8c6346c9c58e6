#include <ATen/Parallel.h>
#include <troika/data/sources/text/text_documents.h>
#include <troika/data/sources/text/text_file.h>
#include <troika/data/tokenize_texts.h>

#include <algorithm>
#include <array>

namespace troika {
namespace {

// What byte and tokenised documents share.
class FileDocuments : public DocumentSource {
 public:
  FileDocuments(std::vector<FoundFile> files, std::int64_t separator, std::uint64_t tokenizer)
      : files_(std::move(files)),
        keys_(keys_of(files_)),
        separator_(separator),
        tokenizer_(tokenizer) {}

  [[nodiscard]] std::int64_t documents() const override {
    return static_cast<std::int64_t>(files_.size());
  }
  [[nodiscard]] std::uint64_t key(std::int64_t document) const override {
    return keys_[static_cast<std::size_t>(document)];
  }
  [[nodiscard]] std::uint64_t head_of_file(std::size_t file) const override { return keys_[file]; }
  [[nodiscard]] double text_bytes(std::int64_t document) const override {
    return static_cast<double>(file(document).size);
  }
  [[nodiscard]] std::int64_t separator() const override { return separator_; }
  [[nodiscard]] std::uint64_t tokenizer() const override { return tokenizer_; }
  [[nodiscard]] std::string describe(std::int64_t document) const override {
    return shown_path(file(document).path);
  }

 protected:
  [[nodiscard]] const FoundFile& file(std::int64_t document) const {
    return files_[static_cast<std::size_t>(document)];
  }
  [[nodiscard]] std::span<const FoundFile> found() const { return files_; }

 private:
  std::vector<FoundFile> files_;
  std::vector<std::uint64_t> keys_;
  std::int64_t separator_;
  std::uint64_t tokenizer_;
};

class ByteDocuments final : public FileDocuments {
 public:
  ByteDocuments(std::vector<FoundFile> files, const Tokenizer& bytes)
      : FileDocuments(std::move(files), bytes.separator(), bytes.fingerprint()) {}

  [[nodiscard]] std::int64_t length(std::int64_t document) const override {
    return file(document).size;
  }
  [[nodiscard]] std::int64_t largest_id() const override { return 255; }
  void read(std::int64_t document, std::int64_t first, std::span<std::int64_t> out) const override {
    const TextFile text(file(document));
    std::array<std::byte, 16384> block{};
    while (!out.empty()) {
      const std::size_t count = std::min(block.size(), out.size());
      text.read_at(first, std::span(block).first(count));
      for (std::size_t i = 0; i < count; ++i) out[i] = std::to_integer<std::int64_t>(block[i]);
      out = out.subspan(count);
      first += static_cast<std::int64_t>(count);
    }
  }
};

class TokenizedDocuments final : public FileDocuments {
 public:
  TokenizedDocuments(std::vector<FoundFile> files, const Tokenizer& tokenizer)
      : FileDocuments(std::move(files), tokenizer.separator(), tokenizer.fingerprint()),
        ids_(static_cast<std::size_t>(documents())),
        largest_id_(tokenizer.vocab_size() - 1) {
    NotUtf8 not_utf8;
    const std::unique_ptr<TextReader> reader = read_text_files(found());
    tokenize_texts(*reader, tokenizer, [&](const TokenizedPart& part) {
      not_utf8.add(part);
      std::vector<std::int32_t>& ids = ids_[part.document];
      ids.insert(ids.end(), part.ids.begin(), part.ids.end());
    });
    warning_ = not_utf8.describe(*reader);
  }

  [[nodiscard]] std::string warning() const override { return warning_; }

  [[nodiscard]] std::int64_t length(std::int64_t document) const override {
    return static_cast<std::int64_t>(ids_[static_cast<std::size_t>(document)].size());
  }
  [[nodiscard]] std::int64_t largest_id() const override { return largest_id_; }
  void read(std::int64_t document, std::int64_t first, std::span<std::int64_t> out) const override {
    const auto ids = std::span(ids_[static_cast<std::size_t>(document)])
                         .subspan(static_cast<std::size_t>(first), out.size());
    std::copy(ids.begin(), ids.end(), out.begin());
  }

 private:
  std::vector<std::vector<std::int32_t>> ids_;
  std::string warning_;
  std::int64_t largest_id_;
};

}  // namespace

std::vector<std::uint64_t> keys_of(std::span<const FoundFile> files) {
  std::vector<std::uint64_t> keys(files.size());
  const auto count = static_cast<std::int64_t>(files.size());
  at::parallel_for(0, count, 64, [&](std::int64_t begin, std::int64_t end) {
    std::array<std::byte, kKeyBytes> block{};
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const auto size = static_cast<std::uint64_t>(files[i].size);
      const auto head = std::span(block).first(std::min<std::uint64_t>(block.size(), size));
      TextFile(files[i]).read_at(0, head);
      keys[i] = document_key(size, head);
    }
  });
  return keys;
}

std::unique_ptr<DocumentSource> open_byte_documents(std::vector<FoundFile> files) {
  return std::make_unique<ByteDocuments>(std::move(files), *open_tokenizer("bytes"));
}

std::unique_ptr<DocumentSource> open_tokenized_documents(std::vector<FoundFile> files,
                                                         const Tokenizer& tokenizer) {
  return std::make_unique<TokenizedDocuments>(std::move(files), tokenizer);
}

}  // namespace troika
