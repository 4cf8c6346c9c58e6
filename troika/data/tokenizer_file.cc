#include <troika/data/tokenizer.h>
#include <troika/data/tokenizer_file.h>
#include <troika/storage/object_store.h>

#include <filesystem>
#include <system_error>

namespace troika {

namespace fs = std::filesystem;

std::string tokenizer_path(const std::string& tokenizer) {
  std::error_code error;
  return fs::is_directory(tokenizer, error) ? (fs::path(tokenizer) / kTokenizerJson).string()
                                            : tokenizer;
}

std::optional<DataFile> tokenizer_file(const std::string& tokenizer, std::uint64_t fingerprint) {
  if (tokenizer == "bytes") return std::nullopt;
  // The options of a store may hold a secret.
  if (is_remote(tokenizer))
    return DataFile{tokenizer.substr(0, tokenizer.find('?')), 0, fingerprint};
  const std::string path = tokenizer_path(tokenizer);
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  return DataFile{path, error ? 0 : static_cast<std::int64_t>(size), fingerprint};
}

}  // namespace troika
