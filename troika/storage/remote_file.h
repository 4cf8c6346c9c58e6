// Files behind URLs that are found by listing, and read at any place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troika {

namespace store_plugin {
class OpenFile;
}

// A file behind a URL. What is read of it is kept on this host where set_store_cache() says so.
// Const access is thread safe.
class RemoteFile {
 public:
  // Opens the file. Throws DataError naming it, with what the store says; StorageError where the
  // store cannot be reached; UsageError where this build reaches no store.
  explicit RemoteFile(std::string url);
  RemoteFile(RemoteFile&&) noexcept;
  ~RemoteFile();

  [[nodiscard]] std::int64_t size() const;
  // Fills `out` with the bytes from `offset` on: a request, unless the bytes are kept here. They
  // are inside the file. Throws as the constructor does.
  void read_at(std::int64_t offset, std::span<std::byte> out) const;

 private:
  std::string url_;
  std::unique_ptr<const store_plugin::OpenFile> file_;
};

struct ListedFile {
  std::string url;  // without its options, which hold for its bucket from then on
  std::int64_t bytes = 0;
};

// Lists a file, or all files below a folder. Throws DataError where neither is there, with what the
// store says; StorageError where the store cannot be reached.
[[nodiscard]] std::vector<ListedFile> list_remote(const std::string& url);

// Makes the options of a URL hold for its bucket, as listing it does, without a request. Throws
// DataError for a URL that is none.
void remember_store_options(const std::string& url);

}  // namespace troika
