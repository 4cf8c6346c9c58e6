#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/config/recipe_file.h>
#include <troika/train/run_folder.h>

namespace troika {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecipeFile = "recipe.toml";

// What decides the numbers of a run; layout, engines and outputs may change between attempts.
Recipe essence(Recipe recipe) {
  const Recipe defaults;
  recipe.runs_dir = defaults.runs_dir;
  recipe.parallel = defaults.parallel;
  recipe.comm = defaults.comm;
  recipe.checkpoint = defaults.checkpoint;
  recipe.observe = defaults.observe;
  recipe.debug = defaults.debug;
  return recipe;
}

// Everything that a run writes; a stranger's files in the folder are left alone.
void remove_run(const fs::path& run) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(run, error)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name == kRecipeFile || name == "metrics.jsonl" || name == "dump" ||
                      name == "model.safetensors" || name == "summary.json" || name == "flight" ||
                      name == "checkpoints" || name.starts_with("events.out.tfevents.") ||
                      (name.starts_with("trace") && name.ends_with(".json"));
    if (ours) fs::remove_all(entry.path(), error);
    if (error) throw_storage_error("remove", entry.path(), error.value());
  }
}

// A run that failed before its first step, of missing data say, is in nobody's way.
bool has_begun(const fs::path& run) {
  return fs::exists(run / "metrics.jsonl");
}

bool holds_same_recipe(const fs::path& run, const Recipe& recipe) {
  return to_toml(essence(recipe_of_run(run))) == to_toml(essence(recipe));
}

[[noreturn]] void refuse_other_recipe(const fs::path& run) {
  throw UsageError("'" + run.string() + "' holds a run of another recipe",
                   "give this one another name with --set name=NAME, or replace the run with "
                   "--overwrite (--resume goes on with a run of the same recipe)");
}

}  // namespace

fs::path run_folder(const Recipe& recipe) {
  return fs::path(recipe.runs_dir) / recipe.name;
}

fs::path summary_path(const fs::path& run) {
  return run / "summary.json";
}

Claim claim_run_folder(const Recipe& recipe, Existing existing) {
  const fs::path run = run_folder(recipe);
  Claim claim = Claim::kFresh;
  if (fs::exists(run / kRecipeFile)) {
    const bool finished = fs::exists(summary_path(run));
    if (existing == Existing::kOverwrite) {
      claim = Claim::kOverwritten;
    } else if (existing == Existing::kRefuseOthers && !has_begun(run)) {
      claim = Claim::kFresh;
    } else if (!holds_same_recipe(run, recipe)) {
      refuse_other_recipe(run);
    } else if (finished) {
      return Claim::kFinished;
    } else if (existing == Existing::kResume) {
      throw UsageError("'" + run.string() + "' holds no checkpoint to resume from",
                       "leave --resume out to start the run again");
    } else {
      claim = Claim::kRestarted;
    }
    remove_run(run);
  } else if (existing == Existing::kResume) {
    throw UsageError("there is no run in '" + run.string() + "' to resume",
                     "leave --resume out to start it");
  }
  make_folders(run);
  write_recipe(recipe, {});
  return claim;
}

void write_recipe(const Recipe& recipe,
                  const std::vector<std::pair<std::string, std::string>>& provenance) {
  write_file_atomically(run_folder(recipe) / kRecipeFile, to_toml(recipe, provenance));
}

Recipe recipe_of_run(const fs::path& run) {
  const fs::path file = run / kRecipeFile;
  if (!fs::exists(file)) {
    throw DataError("'" + run.string() + "' is no run folder: it has no recipe.toml",
                    "give the folder that `troika train` named at its end");
  }
  return load_recipe(file).recipe;
}

}  // namespace troika
