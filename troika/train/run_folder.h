// The folder of a run, <runs_dir>/<name>, and its files. claim.h says who may write to it.
#pragma once

#include <troika/recipe/recipe.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace troika {

[[nodiscard]] std::filesystem::path run_folder(const Recipe& recipe);
// Written last, when all else is on disk: its presence says that the run is finished.
[[nodiscard]] std::filesystem::path summary_path(const std::filesystem::path& run);

// The recipe of a run, with what it was trained with; it is there from the run's start on.
[[nodiscard]] std::filesystem::path recipe_path(const std::filesystem::path& run);
// Where the flight recorders of the ranks lie.
[[nodiscard]] std::filesystem::path flight_folder(const std::filesystem::path& run);

// <run>/recipe.toml: resolved, with a [provenance] table.
void write_recipe(const Recipe& recipe,
                  const std::vector<std::pair<std::string, std::string>>& provenance);

// The recipe of a run, for commands that read it. Throws DataError when `run` is no run folder.
[[nodiscard]] Recipe recipe_of_run(const std::filesystem::path& run);

}  // namespace troika
