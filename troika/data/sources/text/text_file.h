// A data file opened for reading at any place: of this host, or of an object store.
#pragma once

#include <troika/base/file.h>
#include <troika/data/find_files.h>
#include <troika/storage/remote_file.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace troika {

// Read rather than mapped: a file that another process shortens is then an error with a name and
// not a signal, and any number of files meets no limit on mappings. Const access is thread safe.
class TextFile {
 public:
  // Opens `file`, which must outlive this. Throws DataError naming it when it cannot be opened;
  // StorageError where its store cannot be reached. So does reading.
  explicit TextFile(const FoundFile& file);

  // Fills `out` from byte `offset`. Throws DataError naming the file when it cannot be read or is
  // shorter than it was when it was found.
  void read_at(std::int64_t offset, std::span<std::byte> out) const;
  // Returns the text of the file from `offset`, at most `max_bytes` of it.
  [[nodiscard]] std::string text_at(std::int64_t offset, std::size_t max_bytes) const;

 private:
  const FoundFile* file_;
  UniqueFd fd_;
  std::optional<RemoteFile> remote_;
};

}  // namespace troika
