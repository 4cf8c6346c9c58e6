// The folder of a run, <runs_dir>/<name>: who may write to it, and what a run that was there before
// means for the same command given again.
#pragma once

#include <troika/config/recipe.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace troika {

// What to do about a run that is there already.
enum class Existing { kRefuseOthers, kOverwrite, kResume };

enum class Claim {
  kFresh,        // nothing was there
  kRestarted,    // an unfinished run of this recipe, without a checkpoint, was cleared away
  kOverwritten,  // a run was cleared away, as asked
  kFinished,     // this very recipe has been trained: nothing to do
};

[[nodiscard]] std::filesystem::path run_folder(const Recipe& recipe);
// Written last, when all else is on disk: its presence says that the run is finished.
[[nodiscard]] std::filesystem::path summary_path(const std::filesystem::path& run);

// Makes the folder ready for a run from its start and writes the recipe into it, or finds that
// there is nothing to do. Only files that runs write are removed. Throws UsageError when another
// recipe has the name, or when there is no checkpoint to resume from; StorageError.
[[nodiscard]] Claim claim_run_folder(const Recipe& recipe, Existing existing);

// <run>/recipe.toml: resolved, with a [provenance] table.
void write_recipe(const Recipe& recipe,
                  const std::vector<std::pair<std::string, std::string>>& provenance);

// The recipe of a run, for commands that read it. Throws DataError when `run` is no run folder.
[[nodiscard]] Recipe recipe_of_run(const std::filesystem::path& run);

}  // namespace troika
