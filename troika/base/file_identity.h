// Tells a file from others, as far as the file system does: for processes that ask whether they see
// the very same file and not copies of it, and whether a file has changed.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace troika {

struct FileIdentity {
  std::uint64_t device = 0, inode = 0, size = 0;
  std::int64_t seconds = 0, nanoseconds = 0;  // of the last change

  explicit FileIdentity(const struct stat& status)
      : device(status.st_dev),
        inode(status.st_ino),
        size(static_cast<std::uint64_t>(status.st_size)),
        seconds(status.st_mtim.tv_sec),
        nanoseconds(status.st_mtim.tv_nsec) {}
  // Returns that of the file or folder behind a path; nothing where there is none.
  [[nodiscard]] static std::optional<FileIdentity> of(const std::filesystem::path& path);

  // Returns device and inode: equal for processes of one host that see the same file, whatever is
  // written to it.
  [[nodiscard]] std::string file() const {
    return std::to_string(device) + ":" + std::to_string(inode);
  }
  // Returns inode, size and time: equal for hosts that see the same file through a network, which
  // count their devices each for itself, until it changes.
  [[nodiscard]] std::string version() const {
    return std::to_string(inode) + " " + std::to_string(size) + " " + std::to_string(seconds) +
           "." + std::to_string(nanoseconds);
  }
};

}  // namespace troika
