// The folder of a run, <runs_dir>/<name>, and its files. claim.h says who may write to it.
#pragma once

#include <troika/recipe/recipe.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace troika {

[[nodiscard]] std::filesystem::path run_folder(const Recipe& recipe);
// Returns the path of the summary. It is written last, when all else is on disk: its presence says
// that the run is finished.
[[nodiscard]] std::filesystem::path summary_path(const std::filesystem::path& run);

// Returns the path of a run's recipe, with the provenance of its training. The file exists from the
// run's start on.
[[nodiscard]] std::filesystem::path recipe_path(const std::filesystem::path& run);
// Returns the folder of the ranks' flight recorders.
[[nodiscard]] std::filesystem::path flight_folder(const std::filesystem::path& run);

// Writes <run>/recipe.toml: resolved, with a [provenance] table.
void write_recipe(const Recipe& recipe,
                  const std::vector<std::pair<std::string, std::string>>& provenance);

// Reads the recipe of a run, for commands. Throws DataError when `run` is no run folder.
[[nodiscard]] Recipe recipe_of_run(const std::filesystem::path& run);

}  // namespace troika
