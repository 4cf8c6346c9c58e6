// A file that grows by whole records: a record is in it entirely or not at all, also when the disk
// is full. What a run writes as it goes (metrics, event files) is written through this.
#pragma once

#include <troika/base/file.h>

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace troika {

// A file that records are appended to. Not thread-safe. The process buffers nothing: a record is
// with the kernel when append() returns, and so outlives a process that is killed.
class AppendFile {
 public:
  enum class Mode {
    kTruncate,   // start empty
    kKeepLines,  // go on after the last complete line; what follows it is cut off
  };

  // Creates the file if it is missing. Throws StorageError naming it.
  AppendFile(std::filesystem::path path, Mode mode);

  // Appends a record. Throws StorageError naming the file; the file then ends where it ended
  // before.
  void append(std::string_view record);
  // Returns when everything is on disk. Throws StorageError.
  void sync();
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void keep_complete_lines();

  std::filesystem::path path_;
  UniqueFd fd_;
  std::int64_t size_ = 0;
};

}  // namespace troika
