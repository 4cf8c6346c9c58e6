// The checkpoints of a run, as folders:
//
//   <checkpoints>/step-00000100/manifest.json
//   <checkpoints>/step-00000100/00000-of-00004.<attempt>.safetensors
//
// The manifest is written last and by rename, so that a checkpoint is there entirely or not at all.
// They may lie below a URL in an object store, by the same names. A file appears there as a whole,
// and the manifest last as well.
#pragma once

#include <troika/checkpoint/checkpoint_files.h>
#include <troika/checkpoint/manifest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

class CheckpointFolder {
 public:
  // Takes a key that authenticates the checkpoints which are committed, and encrypts their files.
  // The path may be a URL (storage/object_store.h). Throws UsageError where this build cannot reach
  // it. What lies there is read and written with its errors, by the functions below as well.
  explicit CheckpointFolder(std::filesystem::path path, std::optional<EncryptionKey> key = {});

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // Returns the path for messages.
  [[nodiscard]] std::string shown() const { return shown_place(path_); }
  // Returns what is behind a URL; nothing for a folder of this host.
  [[nodiscard]] const std::optional<ObjectStore>& store() const { return store_; }
  [[nodiscard]] const std::optional<EncryptionKey>& key() const { return key_; }
  // Returns the folder, or the URL, of a step's checkpoint, there or not.
  [[nodiscard]] std::filesystem::path step_folder(std::int64_t step) const;
  // Returns the steps of all checkpoints that have a manifest, the newest first. Whether they are
  // whole is not looked at. Throws DataError where the folder cannot be read.
  [[nodiscard]] std::vector<std::int64_t> steps() const;
  // Reads a manifest, and checks that its files are there with the sizes it says. One that is
  // encrypted needs its key (encryption.h). Throws DataError naming the file.
  [[nodiscard]] Manifest read(std::int64_t step) const;
  // Writes the manifest, which makes it a checkpoint: when this returns, it survives a failure of
  // the machine. Throws DataError, before anything is written, where a file that it names is not
  // there or has another size; StorageError. In a store, `check` is called right before each
  // attempt to write it: what it throws keeps the manifest from being written.
  void commit(const Manifest& plain, const std::function<void()>& check = {}) const;
  // Removes the files beside a manifest that it does not name: those of an attempt before. Throws
  // StorageError.
  void remove_unnamed(const Manifest& manifest) const;
  // Removes all checkpoints but the `keep` newest of those up to `step` and `others`, and what was
  // begun before it and never finished. Call it once the checkpoint of `step` is there. Throws
  // StorageError.
  void remove_old(std::int64_t step, std::int64_t keep,
                  std::span<const std::int64_t> others = {}) const;
  // Removes every checkpoint, finished or not. Throws StorageError.
  void remove_all() const;

 private:
  // Says what there is of a step, by the name of its folder.
  struct Entry {
    std::int64_t step = 0;
    std::string name;
    bool is_checkpoint = false;
  };
  [[nodiscard]] std::vector<Entry> entries() const;
  [[nodiscard]] std::vector<Entry> stored_entries() const;
  void remove(const Entry& entry) const;

  std::filesystem::path path_;
  std::optional<ObjectStore> store_;
  std::optional<EncryptionKey> key_;
};

// Reads the manifest of one checkpoint, wherever its folder has come to lie, and checks its files
// as CheckpointFolder::read() does.
[[nodiscard]] Manifest read_checkpoint(const std::filesystem::path& step_folder);
// Returns whether a folder, or a URL, is that of one checkpoint. Throws DataError where a store
// does not answer.
[[nodiscard]] bool is_checkpoint(const std::filesystem::path& step_folder);

// Returns "step-00000100", and the step of such a name.
[[nodiscard]] std::string step_name(std::int64_t step);
[[nodiscard]] std::optional<std::int64_t> step_of_name(std::string_view name);
// Returns the name of the file that a rank writes. `attempt` tells the files of one start of a run
// from those of another.
[[nodiscard]] std::string shard_file_name(int rank, int ranks, const std::string& attempt);

// Reads the files number `first`, `first + every`, ... of a checkpoint, and compares them with
// their SHA-256. Throws DataError naming a file that differs.
void verify_shards(const std::filesystem::path& step_folder, const Manifest& manifest,
                   std::size_t first = 0, std::size_t every = 1);

}  // namespace troika
