// The files of one checkpoint, wherever they lie: in a folder, or below a URL in an object store.
// Nothing here needs LibTorch.
#pragma once

#include <troika/base/file.h>
#include <troika/checkpoint/manifest.h>
#include <troika/storage/object_store.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>

namespace troika {

inline constexpr const char* kManifestFile = "manifest.json";
// Begins the names of the run's own files beside a checkpoint in a store (train/run_files.h).
inline constexpr const char* kRunFilesPrefix = "run/";

class CheckpointFiles {
 public:
  // Remembers the place, a folder or a URL (storage/object_store.h). Throws UsageError where this
  // build cannot reach it.
  explicit CheckpointFiles(std::filesystem::path place);

  // Returns the folder, or the URL with its options.
  [[nodiscard]] const std::filesystem::path& place() const { return place_; }
  // Returns the place of one of them, for messages.
  [[nodiscard]] std::string shown(const std::string& name) const;
  // Throws DataError where a store does not answer.
  [[nodiscard]] bool has(const std::string& name) const;

  // Reads the manifest, and checks that it is authentic and that its files are there with the sizes
  // it says. Throws DataError naming the file.
  [[nodiscard]] Manifest read_manifest() const;
  // Throws DataError naming a file of the manifest that is not there, has another size, or, in a
  // folder, is encrypted without its leave.
  void check_files(const Manifest& manifest) const;
  // Opens a file. What lies in a store is copied to an unnamed file among the temporary ones
  // (TMPDIR), which goes with the mapping, and compared with its SHA-256 on the way. Throws
  // DataError naming the file.
  [[nodiscard]] MappedFile open(const Manifest& manifest, const ManifestShard& shard) const;
  // Reads a file, and compares it with its SHA-256. Throws DataError where it differs.
  void verify(const Manifest& manifest, const ManifestShard& shard) const;
  // Writes a file of the bytes that `next` returns, none at its end: in a folder, which is made, it
  // survives a failure of the machine then. Throws StorageError, and what `next` throws; nothing
  // new is there then.
  void write(const std::string& name,
             const std::function<std::span<const std::byte>()>& next) const;

 private:
  void fetch(const Manifest& manifest, const ManifestShard& shard,
             const std::function<void(std::span<const std::byte>)>& take) const;

  std::filesystem::path place_;
  std::optional<ObjectStore> store_;
};

}  // namespace troika
