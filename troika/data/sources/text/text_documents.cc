#include <ATen/Parallel.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/data/overlapped.h>
#include <troika/data/sources/text/shared_tokens.h>
#include <troika/data/sources/text/text_documents.h>
#include <troika/data/sources/text/text_file.h>
#include <troika/data/tokenize_texts.h>
#include <troika/storage/object_store.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace troika {
namespace {

bool are_remote(std::span<const FoundFile> files) {
  return std::ranges::any_of(files, [](const FoundFile& each) { return is_remote(each.path); });
}

// What byte and tokenised documents share.
class FileDocuments : public DocumentSource {
 public:
  FileDocuments(std::vector<FoundFile> files, std::vector<std::uint64_t> keys,
                std::int64_t separator, std::uint64_t tokenizer)
      : files_(std::move(files)),
        keys_(std::move(keys)),
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
  ByteDocuments(std::vector<FoundFile> files, std::vector<std::uint64_t> keys,
                const Tokenizer& bytes)
      : FileDocuments(std::move(files), std::move(keys), bytes.separator(), bytes.fingerprint()) {}

  [[nodiscard]] std::int64_t length(std::int64_t document) const override {
    return file(document).size;
  }
  [[nodiscard]] std::int64_t largest_id() const override { return 255; }
  [[nodiscard]] bool is_remote() const override { return are_remote(found()); }
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

// Keeps the ids in memory.
class TokenizedDocuments final : public FileDocuments {
 public:
  TokenizedDocuments(std::vector<FoundFile> files, std::vector<std::uint64_t> keys,
                     const Tokenizer& tokenizer)
      : FileDocuments(std::move(files), std::move(keys), tokenizer.separator(),
                      tokenizer.fingerprint()),
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

// They are those of the texts.
std::vector<std::uint64_t> keys_in(const DocumentSource& tokens) {
  std::vector<std::uint64_t> keys;
  for (std::int64_t i = 0; i < tokens.documents(); ++i) keys.push_back(tokens.key(i));
  return keys;
}

// Maps ids that one rank of the host has written.
class MappedDocuments final : public FileDocuments {
 public:
  MappedDocuments(std::vector<FoundFile> files, const Tokenizer& tokenizer, TokenisedTexts texts)
      : FileDocuments(std::move(files), keys_in(*texts.tokens), tokenizer.separator(),
                      tokenizer.fingerprint()),
        texts_(std::move(texts)),
        largest_id_(tokenizer.vocab_size() - 1) {
    check(texts_.tokens->documents() == documents(), "a text is not among the tokens");
  }

  [[nodiscard]] std::string warning() const override { return texts_.warning; }
  [[nodiscard]] std::int64_t length(std::int64_t document) const override {
    return texts_.tokens->length(document);
  }
  [[nodiscard]] std::int64_t largest_id() const override { return largest_id_; }
  void read(std::int64_t document, std::int64_t first, std::span<std::int64_t> out) const override {
    texts_.tokens->read(document, first, out);
  }

 private:
  TokenisedTexts texts_;
  std::int64_t largest_id_;
};

// Telling others of ids costs more than to make those of a short text.
bool is_worth_sharing(std::span<const FoundFile> files) {
  constexpr std::int64_t kLeastBytes = std::int64_t{1} << 20;
  std::int64_t bytes = 0;
  for (const FoundFile& file : files) bytes += file.size;
  return bytes >= kLeastBytes;
}

// Telling others of keys costs more than to read the heads of some files of this host.
std::vector<std::uint64_t> keys_once(std::span<const FoundFile> files, HostWork& host) {
  constexpr std::size_t kMany = 4096;
  if (host.ranks() == 1 || (files.size() < kMany && !are_remote(files))) return keys_of(files);
  const std::string text = host.once("heads of the data files", [&](const auto&) {
    const std::vector<std::uint64_t> keys = keys_of(files);
    return std::string(text_of(std::as_bytes(std::span(keys))));
  });
  std::vector<std::uint64_t> keys(files.size());
  check(text.size() == files.size() * sizeof(keys[0]), "another rank has other data files");
  std::memcpy(keys.data(), text.data(), text.size());
  return keys;
}

}  // namespace

std::vector<std::uint64_t> keys_of(std::span<const FoundFile> files) {
  std::vector<std::uint64_t> keys(files.size());
  const auto count = static_cast<std::int64_t>(files.size());
  const auto read = [&](std::int64_t i) {
    const FoundFile& file = files[static_cast<std::size_t>(i)];
    std::array<std::byte, kKeyBytes> block{};
    const auto size = static_cast<std::uint64_t>(file.size);
    const auto head = std::span(block).first(std::min<std::uint64_t>(block.size(), size));
    TextFile(file).read_at(0, head);
    keys[static_cast<std::size_t>(i)] = document_key(size, head);
  };
  if (are_remote(files)) {
    run_overlapped(count, read);
    return keys;
  }
  at::parallel_for(0, count, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) read(i);
  });
  return keys;
}

std::unique_ptr<DocumentSource> open_byte_documents(std::vector<FoundFile> files, HostWork& host) {
  std::vector<std::uint64_t> keys = keys_once(files, host);
  return std::make_unique<ByteDocuments>(std::move(files), std::move(keys),
                                         *open_tokenizer("bytes"));
}

std::unique_ptr<DocumentSource> open_tokenized_documents(std::vector<FoundFile> files,
                                                         const Tokenizer& tokenizer,
                                                         HostWork& host) {
  if (host.ranks() > 1 && is_worth_sharing(files)) {
    // Without room for a file each rank can keep the ids in its memory.
    const Room room = are_remote(files) ? Room::kIsNeeded : Room::kIsOptional;
    const auto open = [&] { return read_text_files(files); };
    TokenisedTexts texts = tokenise_once(host, open, tokenizer, Tokenless::kKept, room);
    if (texts.tokens) {
      return std::make_unique<MappedDocuments>(std::move(files), tokenizer, std::move(texts));
    }
  }
  std::vector<std::uint64_t> keys = keys_of(files);
  return std::make_unique<TokenizedDocuments>(std::move(files), std::move(keys), tokenizer);
}

}  // namespace troika
