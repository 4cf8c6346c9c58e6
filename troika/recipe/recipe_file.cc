#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/config/reader.h>
#include <troika/recipe/recipe_file.h>
#include <troika/recipe/validate.h>
#include <troika/recipe/warnings.h>

namespace troika {
namespace {

std::string code(std::string_view text) {
  return "`" + std::string(text) + "`";
}

std::string not_yet() {
  std::string text = "\n## Refused\n\n| key | refused | write instead |\n|---|---|---|\n";
  for (const Refusal& refusal : refusals()) {
    text += "| " + code(refusal.key) + " | " + std::string(refusal.when) + " | " +
            code(refusal.instead) + " |\n";
  }
  return text;
}

}  // namespace

LoadedRecipe parse_recipe(std::string_view text, std::string_view source_name,
                          std::span<const std::string> overrides, KnownRanks ranks,
                          EngineUse engine) {
  LoadedRecipe loaded;
  ReadReport source = read_document(recipe_schema(), &loaded.recipe, text, source_name, overrides);
  close_sizes(loaded.recipe, source.origins);
  validate(loaded.recipe, source.origins, ranks);
  refuse_unsupported(loaded.recipe, source.origins, engine);

  loaded.origins = std::move(source.origins);
  const auto add = [&](std::vector<std::string> warnings) {
    for (std::string& warning : warnings) loaded.warnings.push_back(std::move(warning));
  };
  add(std::move(source.warnings));
  add(warnings_of(loaded.recipe, loaded.origins));
  return loaded;
}

LoadedRecipe load_recipe(const std::filesystem::path& file, std::span<const std::string> overrides,
                         KnownRanks ranks, EngineUse engine) {
  std::string text;
  try {
    text = read_file(file, kMaxRecipeBytes);
  } catch (const DataError& error) {
    // A recipe is part of how the command was called, not of its data.
    throw UsageError(error.what(), error.hint());
  }
  return parse_recipe(text, file.string(), overrides, ranks, engine);
}

std::string to_toml(const Recipe& recipe, const Provenance& provenance) {
  return write_document(recipe_schema(), &recipe, provenance);
}

std::string default_recipe_toml() {
  Recipe recipe;
  recipe.name = "quickstart";
  return "# Every key with its default. Required are name, [model] kind with its sizes, [data] "
         "kind\n"
         "# and, unless that is random, paths.\n" +
         write_commented(recipe_schema(), &recipe);
}

std::string recipe_reference() {
  return reference_tables(recipe_schema()) + not_yet();
}

}  // namespace troika
