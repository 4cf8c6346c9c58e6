#include <troika/base/file.h>
#include <troika/data/tokenizer.h>
#include <troika/train/run_folder.h>
#include <troika/train/run_tokenizer.h>
#include <troika/train/saved_tokenizer.h>

#include <algorithm>
#include <map>
#include <vector>

namespace troika {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPieceModel = "tokenizer.model";

}  // namespace

void write_data_description(const Recipe& recipe, const fs::path& run,
                            const std::string& description) {
  if (!description.empty()) write_file_atomically(data_path(run), description);
  const auto name = recipe.data.kind().tokenizer(recipe.data.options());
  if (!name || *name == "bytes") return;
  const TokenizerFiles own = read_tokenizer(*name);
  std::map<std::string, std::string> files;
  if (own.is_json()) files = tokenizer_files_in(fs::path(own.source).parent_path());
  if (!own.config.empty()) files[kTokenizerConfig] = own.config;  // of a store, say
  files[own.is_json() ? kTokenizerJson : kPieceModel] = own.model;
  const fs::path folder = run / kRunTokenizer;
  make_folders(folder);
  for (const auto& [file, content] : files) write_file_atomically(folder / file, content);
}

Recipe recipe_of_trained(const fs::path& run, std::span<const std::string> overrides) {
  std::vector<std::string> all;
  const bool asks_for_others = std::ranges::any_of(overrides, [](const std::string& each) {
    return each.starts_with("data.tokenizer=") || each.starts_with("data.kind=");
  });
  for (const char* const file : {kTokenizerJson, kPieceModel}) {
    const fs::path path = run / kRunTokenizer / file;
    if (asks_for_others || !fs::exists(path)) continue;
    all.push_back("data.tokenizer=" + path.string());
    break;
  }
  all.insert(all.end(), overrides.begin(), overrides.end());
  return recipe_of_run(run, all);
}

}  // namespace troika
