#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/run_folder.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace troika {

namespace fs = std::filesystem;

fs::path run_folder(const Recipe& recipe) {
  return fs::path(recipe.runs_dir) / recipe.name;
}

fs::path summary_path(const fs::path& run) {
  return run / "summary.json";
}

fs::path data_path(const fs::path& run) {
  return run / "data.json";
}

fs::path recipe_path(const fs::path& run) {
  return run / "recipe.toml";
}

fs::path flight_folder(const fs::path& run) {
  return run / "flight";
}

void write_recipe(const Recipe& recipe,
                  const std::vector<std::pair<std::string, std::string>>& provenance) {
  write_file_atomically(recipe_path(run_folder(recipe)), to_toml(recipe, provenance));
}

std::optional<EncryptionKey> key_of(const Recipe& recipe) {
  return key_from(recipe.checkpoint.key, "checkpoint.key");
}

void sync_metrics(const fs::path& run) {
  std::error_code error;
  fs::directory_iterator entries(run, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const fs::path& path = entries->path();
    const std::string name = path.filename().string();
    if (name != "metrics.jsonl" && !name.starts_with("events.out.tfevents.")) continue;
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file.valid()) throw_storage_error("open", path, errno);
    // EINVAL: a pipe or device, which holds nothing that could be synced.
    if (::fdatasync(file.get()) != 0 && errno != EINVAL) throw_storage_error("write", path, errno);
  }
  if (error) throw_storage_error("read", run, error.value());
  sync_folder(run);
}

Recipe recipe_of_run(const fs::path& run, std::span<const std::string> overrides) {
  const fs::path file = recipe_path(run);
  if (!fs::exists(file)) {
    throw DataError("'" + run.string() + "' is no run folder: it has no recipe.toml",
                    "give the folder that `troika train` named at its end");
  }
  Recipe recipe = load_recipe(file, overrides).recipe;
  try {
    (void)key_of(recipe);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): TROIKA_KEY may name it
  }
  return recipe;
}

}  // namespace troika
