#include <troika/base/file.h>
#include <troika/base/random.h>
#include <troika/data/tokenizer.h>
#include <troika/data/tokenizer_file.h>
#include <troika/storage/object_store.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace troika {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::int64_t vocab_size() const override { return 256; }
  [[nodiscard]] std::int64_t separator() const override { return 0; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return stream_key(0, "bytes"); }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  [[nodiscard]] std::string decode(std::span<const std::int64_t> ids) const override {
    std::string text;
    for (const std::int64_t id : ids) {
      if (id >= 0 && id < vocab_size()) text += static_cast<char>(id);
    }
    return text;
  }
};

}  // namespace

std::size_t part_length(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return text.size();
  const std::size_t line_end = text.rfind('\n', max_bytes - 1);
  if (line_end != std::string_view::npos) return line_end + 1;
  // A byte 10xxxxxx goes on with a character, which has four bytes at most.
  const auto goes_on = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  std::size_t length = max_bytes;
  while (length > 1 && max_bytes - length < 3 && goes_on(length)) --length;
  return length;
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
  return load_tokenizer(read_tokenizer(name));
}

// By the first character, or by the name: what is named so and is none is refused as such.
bool TokenizerFiles::is_json() const {
  const std::size_t first = model.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && model[first] == '{') return true;
  return std::filesystem::path(source).extension() == ".json";
}

namespace {

// Of an object store: a file, or the folder of a tokenizer.json.
TokenizerFiles read_remote_tokenizer(const std::string& url) {
  const std::size_t query = std::min(url.find('?'), url.size());
  const std::size_t slash = url.rfind('/', query);
  const ObjectStore above(url.substr(0, slash) + url.substr(query));
  std::string name = url.substr(slash + 1, query - slash - 1);
  const bool is_folder = !above.list(name + "/" + kTokenizerJson).empty();
  std::string config;
  if (is_folder) {
    config = name + "/" + kTokenizerConfig;
    name += std::string("/") + kTokenizerJson;
  } else {
    config = kTokenizerConfig;
  }
  TokenizerFiles files;
  files.source = above.place() + "/" + name;
  files.model = above.read_data(name, kMaxTokenizerBytes);
  if (files.is_json() && !above.list(config).empty()) {
    files.config = above.read_data(config, kMaxTokenizerBytes);
  }
  return files;
}

}  // namespace

TokenizerFiles read_tokenizer(const std::string& path) {
  if (is_remote(path)) return read_remote_tokenizer(path);
  namespace fs = std::filesystem;
  std::error_code error;
  TokenizerFiles files;
  files.source = tokenizer_path(path);
  files.model = read_file(files.source, kMaxTokenizerBytes);
  const fs::path config = fs::path(files.source).parent_path() / kTokenizerConfig;
  if (files.is_json() && fs::exists(config, error)) {
    files.config = read_file(config, kMaxTokenizerBytes);
  }
  return files;
}

std::unique_ptr<Tokenizer> load_tokenizer(const TokenizerFiles& files) {
  if (files.is_json()) return load_tokenizer_json(files.model, files.source, files.config);
  return load_sentencepiece(files.model, files.source);
}

}  // namespace troika
