// The folder of a run, <runs_dir>/<name>, and its files. claim.h says who may write to it.
#pragma once

#include <troika/recipe/recipe.h>

#include <filesystem>
#include <optional>
#include <span>
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
// Returns the path of what the run's data say of themselves (Dataset::description); the file exists
// where they do.
[[nodiscard]] std::filesystem::path data_path(const std::filesystem::path& run);
// Returns the folder of the ranks' flight recorders.
[[nodiscard]] std::filesystem::path flight_folder(const std::filesystem::path& run);

// Writes <run>/recipe.toml: resolved, with a [provenance] table.
void write_recipe(const Recipe& recipe,
                  const std::vector<std::pair<std::string, std::string>>& provenance);

// Returns when the lines of metrics.jsonl and the event files that have been written so far are on
// disk. Throws StorageError.
void sync_metrics(const std::filesystem::path& run);

// Returns the key that checkpoint.key names, for writing, and remembers it for all that this
// process reads (encryption.h). Throws UsageError where it cannot be read.
[[nodiscard]] std::optional<EncryptionKey> key_of(const Recipe& recipe);

// Reads the recipe of a run, for commands, with overrides as load_recipe() takes them, and
// remembers its key, where that can be read: who needs it says so. Throws DataError when `run` is
// no run folder.
[[nodiscard]] Recipe recipe_of_run(const std::filesystem::path& run,
                                   std::span<const std::string> overrides = {});

}  // namespace troika
