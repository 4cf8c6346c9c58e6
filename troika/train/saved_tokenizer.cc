#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/data/tokenizer.h>
#include <troika/storage/object_store.h>
#include <troika/train/hub_tokenizer.h>
#include <troika/train/run_folder.h>
#include <troika/train/saved_tokenizer.h>

#include <array>
#include <functional>

namespace troika {
namespace {

namespace fs = std::filesystem;

// What the libraries write for a tokenizer, and the ids that end a text, which config.json of an
// export does not have.
constexpr std::array kFiles = {"tokenizer.json",    "vocab.json",
                               "merges.txt",        "tokenizer_config.json",
                               "added_tokens.json", "special_tokens_map.json",
                               kGenerationConfig,   "chat_template.jinja"};

bool has_tokenizer(const fs::path& folder) {
  return fs::exists(folder / kFiles[0]) || fs::exists(folder / kFiles[1]);
}

// The run that has the file, folder or checkpoint which [model] from names.
fs::path run_with(const fs::path& from) {
  if (!fs::is_directory(from)) return from.parent_path();
  const fs::path above = (from / "").parent_path().parent_path();
  return above.filename() == "checkpoints" ? above.parent_path() : from;
}

// The path that [model] from names in the recipe of the run in `folder`. A relative one is seen
// from where that run was started, which need not be here: its folder lies in runs_dir there.
fs::path initial_values_of(const Recipe& recipe, const fs::path& folder) {
  fs::path from = recipe.model.from.path;
  const fs::path in_start = fs::path(recipe.runs_dir) / recipe.name;
  if (fs::exists(from) || from.is_absolute() || in_start.is_absolute()) return from;
  fs::path start = fs::absolute(folder / "").lexically_normal().parent_path();
  for (fs::path rest = in_start.lexically_normal(); !rest.empty(); rest = rest.parent_path()) {
    if (start.filename() != rest.filename()) return from;
    start = start.parent_path();
  }
  return start / from;
}

// The run's folder, or that of one that it started from, for which `is_it` holds.
std::optional<fs::path> find_before(const fs::path& run, const Recipe& recipe,
                                    const std::function<bool(const fs::path&)>& is_it) {
  constexpr int kMostRuns = 64;  // recipes may name each other in a circle
  fs::path folder = run;
  Recipe of_folder = recipe;
  for (int i = 0; i < kMostRuns && !is_remote(of_folder.model.from.path); ++i) {
    if (!is_remote(folder.native()) && is_it(folder)) return folder;
    if (of_folder.model.from.are_drawn()) return std::nullopt;
    folder = run_with(initial_values_of(of_folder, folder));
    of_folder = {};
    try {
      if (fs::exists(recipe_path(folder))) of_folder = recipe_of_run(folder);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): of another version
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> copy_tokenizer(const fs::path& from, const fs::path& to) {
  std::vector<std::string> names;
  if (!has_tokenizer(from)) return names;
  for (const char* name : kFiles) {
    if (!fs::exists(from / name)) continue;
    std::error_code error;
    fs::copy_file(from / name, to / name, error);
    if (error) throw_storage_error("write", to / name, error.value());
    names.emplace_back(name);
  }
  return names;
}

std::map<std::string, std::string> tokenizer_files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const char* name : kFiles) {
    // How a model generates is its own affair, not its tokenizer's.
    if (std::string_view(name) == kGenerationConfig) continue;
    if (fs::exists(folder / name)) files[name] = read_file(folder / name, kMaxTokenizerBytes);
  }
  return files;
}

std::optional<fs::path> find_hub_origin(const fs::path& run, const Recipe& recipe) {
  auto origin = find_before(
      run, recipe, [](const fs::path& folder) { return fs::exists(folder / kSavedConfig); });
  if (!origin || !knows_tokenizer(recipe)) return origin;
  const std::string name = *recipe.data.kind().tokenizer(recipe.data.options());
  if (name == "bytes") return std::nullopt;
  const TokenizerFiles own = read_tokenizer(name);
  for (const char* const file : {kTokenizerJson, "tokenizer.model"}) {
    if (fs::exists(*origin / file) && read_file(*origin / file, kMaxTokenizerBytes) == own.model) {
      return origin;
    }
  }
  return std::nullopt;
}

std::optional<fs::path> find_saved_tokenizer(const fs::path& run, const Recipe& recipe) {
  if (knows_tokenizer(recipe)) return std::nullopt;
  return find_before(run, recipe, has_tokenizer);
}

}  // namespace troika
