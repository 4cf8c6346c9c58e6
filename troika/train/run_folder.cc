#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/run_folder.h>

namespace troika {

namespace fs = std::filesystem;

fs::path run_folder(const Recipe& recipe) {
  return fs::path(recipe.runs_dir) / recipe.name;
}

fs::path summary_path(const fs::path& run) {
  return run / "summary.json";
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

Recipe recipe_of_run(const fs::path& run) {
  const fs::path file = recipe_path(run);
  if (!fs::exists(file)) {
    throw DataError("'" + run.string() + "' is no run folder: it has no recipe.toml",
                    "give the folder that `troika train` named at its end");
  }
  return load_recipe(file).recipe;
}

}  // namespace troika
