#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/checkpoint/encryption.h>
#include <troika/recipe/recipe.h>
#include <troika/train/checkpoint_mirror.h>
#include <troika/train/run_files.h>
#include <troika/train/run_folder.h>

#include <utility>

namespace troika {
namespace {

namespace fs = std::filesystem;

std::string name_in_step(std::int64_t step, const std::string& file) {
  return step_name(step) + "/" + file;
}

}  // namespace

CheckpointMirror::CheckpointMirror(const std::string& url, fs::path run,
                                   std::optional<EncryptionKey> key)
    : copies_(url, std::move(key)), run_(std::move(run)) {}

std::optional<CheckpointMirror> CheckpointMirror::of(const Recipe& recipe) {
  if (recipe.checkpoint.mirror == kNoMirror) return std::nullopt;
  return CheckpointMirror(place_below(recipe.checkpoint.mirror, recipe.name), run_folder(recipe),
                          key_of(recipe));
}

void CheckpointMirror::claim() {
  if (lock_) return check_ownership();
  try {
    lock_ = std::make_unique<WriteLock>(
        copies_.path(), "give one of them another checkpoint.mirror", LockedHere::kRefused);
  } catch (const UsageError&) {
    throw;
    // A store that fails here fails for the copy, too. NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const Error&) {
  }
}

void CheckpointMirror::check_ownership() const {
  if (lock_) lock_->check_ownership();
}

void CheckpointMirror::mark_doubtful(std::int64_t first, const std::string& reason) {
  claim();
  troika::mark_doubtful(copies_, first, reason, [this] { check_ownership(); });
}

void CheckpointMirror::copy(const CheckpointFolder& folder, std::int64_t step) {
  claim();
  const fs::path from = folder.step_folder(step);
  const Manifest manifest = folder.read(step);
  for (const ManifestShard& shard : manifest.shards) {
    store().upload(from / shard.file, name_in_step(step, shard.file));
  }
  upload_run_files(store(), step, run_);
  copies_.commit(manifest, [this] { check_ownership(); });
  copies_.remove_old(step, 0, folder.steps());
}

std::optional<std::int64_t> CheckpointMirror::restore(
    const CheckpointFolder& folder, const std::function<bool(const Manifest&)>& is_wanted,
    TakeDoubtful doubtful,
    const std::function<void(std::int64_t, const std::string&)>& on_damaged) const {
  std::string first_objection;
  for (const std::int64_t step : copies_.steps()) {
    try {
      const Manifest manifest = copies_.read(step);
      if (!is_wanted(manifest)) continue;
      if (const std::string objection = objection_to(manifest, doubtful); !objection.empty()) {
        if (first_objection.empty()) first_objection = objection;
        on_damaged(step, objection);
        continue;
      }
      fetch(folder, manifest);
      return step;
    } catch (const MissingKeyError&) {
      throw;  // it is not damaged
    } catch (const DataError& error) {
      on_damaged(step, error.what());
    }
  }
  if (first_objection.empty()) return std::nullopt;
  throw DataError(
      "no copy of a checkpoint in " + shown_place(url()) + " can be used: " + first_objection,
      "--resume goes on from it all the same, --overwrite starts the run again");
}

void CheckpointMirror::fetch(const CheckpointFolder& folder, const Manifest& manifest) const {
  const fs::path to = folder.step_folder(manifest.step);
  make_folders(to);
  for (const ManifestShard& shard : manifest.shards) {
    store().download(name_in_step(manifest.step, shard.file), to / shard.file);
  }
  verify_shards(to, manifest);
  folder.commit(manifest);
  const bool has_run = fs::exists(recipe_path(run_));
  if (!has_run) download_run_files(store(), manifest.step, run_);
}

}  // namespace troika
