// Copies of a run's checkpoints in an object store, for a run whose machine does not come back.
#pragma once

#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/checkpoint/doubt.h>
#include <troika/checkpoint/write_lock.h>
#include <troika/storage/object_store.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace troika {

struct Recipe;

// <url>/<run>/step-00000100/ has the files of a checkpoint, and run/ in it those of the run's
// folder that go on with it (run_files.h). The manifest is written last. Methods are for rank 0.
class CheckpointMirror {
 public:
  // Returns the mirror that a recipe asks for.
  [[nodiscard]] static std::optional<CheckpointMirror> of(const Recipe& recipe);

  // Returns the URL without its options.
  [[nodiscard]] const std::string& url() const { return store().place(); }

  // Copies the checkpoint of a step, and removes those that `folder` no longer has. The first call
  // takes the place for this run (checkpoint/write_lock.h). Throws StorageError, and UsageError
  // where another run copies there; no part of a checkpoint counts then.
  void copy(const CheckpointFolder& folder, std::int64_t step);
  // Marks the copies of step `first` and later (checkpoint/doubt.h). Throws as copy() does.
  void mark_doubtful(std::int64_t first, const std::string& reason);
  // Copies the newest checkpoint that is whole to this host. Where the run's folder has no recipe,
  // the files of its run come as well, the recipe last. Returns its step, or nothing where there is
  // none. `is_wanted` is asked for each, and `on_damaged` hears of those that are not used. Throws
  // DataError, also where all that could be used are in doubt; StorageError.
  std::optional<std::int64_t> restore(
      const CheckpointFolder& folder, const std::function<bool(const Manifest&)>& is_wanted,
      TakeDoubtful doubtful,
      const std::function<void(std::int64_t step, const std::string& problem)>& on_damaged) const;

 private:
  CheckpointMirror(const std::string& url, std::filesystem::path run,
                   std::optional<EncryptionKey> key);
  void claim();
  void check_ownership() const;
  void fetch(const CheckpointFolder& folder, const Manifest& manifest) const;
  [[nodiscard]] const ObjectStore& store() const { return *copies_.store(); }

  CheckpointFolder copies_;
  std::filesystem::path run_;
  std::unique_ptr<WriteLock> lock_;
};

}  // namespace troika
