// The folder of a run, <runs_dir>/<name>: who may write to it, and what a run that was there before
// means for the same command given again.
#pragma once

#include <troika/base/file.h>
#include <troika/config/recipe.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace troika {

// What to do about a run that is there already.
enum class Existing { kRefuseOthers, kOverwrite, kResume };

enum class Claim {
  kFresh,        // nothing is there
  kRestarted,    // an unfinished run of this recipe, without a checkpoint, is to be cleared away
  kOverwritten,  // a run is to be cleared away, as asked
  kFinished,     // this very recipe has been trained: nothing to do
};

[[nodiscard]] std::filesystem::path run_folder(const Recipe& recipe);
// Written last, when all else is on disk: its presence says that the run is finished.
[[nodiscard]] std::filesystem::path summary_path(const std::filesystem::path& run);

// The right to write to a run's folder, for as long as this lives: <run>/.lock is locked (flock),
// and names host and process.
class RunClaim {
 public:
  // Decides, and changes nothing but the lock. Throws UsageError when another recipe has the name,
  // when there is no checkpoint to resume from, or when another process holds the lock;
  // StorageError.
  RunClaim(const Recipe& recipe, Existing existing);

  [[nodiscard]] Claim kind() const { return kind_; }
  // Clears away the run that was there, once nothing stands in the way of the new one. Only files
  // that runs write are removed; those in flight/ belong to the ranks that are running.
  void clear() const;

 private:
  [[nodiscard]] Claim decide(const Recipe& recipe, Existing existing) const;

  std::filesystem::path run_;
  UniqueFd lock_;
  Claim kind_;
};

// <run>/recipe.toml: resolved, with a [provenance] table.
void write_recipe(const Recipe& recipe,
                  const std::vector<std::pair<std::string, std::string>>& provenance);

// The recipe of a run, for commands that read it. Throws DataError when `run` is no run folder.
[[nodiscard]] Recipe recipe_of_run(const std::filesystem::path& run);

}  // namespace troika
