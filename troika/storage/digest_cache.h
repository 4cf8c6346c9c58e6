// Hashes of files' contents, kept in the cache folder of the user, so that a file that has not
// changed is not read again: XXH64, by which hosts compare data, and SHA-256, which manifests hold.
// A file is known by path, device, inode, size, and the time of its last change. The cache may be
// lost or damaged at any time: then files are read again.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troika {

// Hashes by file. Processes may share a folder. Not thread safe.
class DigestCache {
 public:
  // The number of files that it remembers: the oldest are forgotten first. A SHA-256 counts as
  // four.
  static constexpr std::size_t kMostFiles = std::size_t{1} << 21;

  // Returns troika's folder in $XDG_CACHE_HOME, or in ~/.cache; an empty path where neither is
  // named.
  [[nodiscard]] static std::filesystem::path user_folder();

  // Reads what the folder holds. Caches nothing where the path is empty.
  explicit DigestCache(std::filesystem::path folder);

  // Return the XXH64 of a file in this state, and remember it. A file that has changed within the
  // last two seconds is not remembered: it may change again without a sign.
  [[nodiscard]] std::optional<std::uint64_t> find(const std::filesystem::path& path,
                                                  const struct stat& state) const;
  void add(const std::filesystem::path& path, const struct stat& state, std::uint64_t digest);
  // Do the same for the SHA-256, as 64 hexadecimal digits. Other texts are not remembered.
  [[nodiscard]] std::optional<std::string> find_sha256(const std::filesystem::path& path,
                                                       const struct stat& state) const;
  void add_sha256(const std::filesystem::path& path, const struct stat& state,
                  std::string_view digest);
  // Writes what add() has got to the folder, which is made, with what other processes have written
  // meanwhile. Does nothing where nothing is new, or the folder cannot be written.
  void save();

 private:
  struct Digest {
    std::uint64_t key = 0, value = 0;
  };
  void add_value(std::uint64_t key, std::uint64_t value);
  [[nodiscard]] std::filesystem::path file() const;
  [[nodiscard]] std::vector<Digest> read() const;

  std::filesystem::path folder_;
  std::unordered_map<std::uint64_t, std::uint64_t> known_;  // value by key
  std::vector<Digest> added_;
};

}  // namespace troika
