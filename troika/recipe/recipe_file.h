// Reads recipes from TOML and writes them. Every error names file, line and key; a misspelt key or
// word comes with the nearest known one.
#pragma once

#include <troika/config/origins.h>
#include <troika/config/writer.h>
#include <troika/recipe/recipe.h>
#include <troika/recipe/refusals.h>
#include <troika/recipe/resolve.h>

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troika {

struct LoadedRecipe {
  Recipe recipe;                      // validated; every default filled in, but the data axis
  std::vector<std::string> warnings;  // one line each, for the user
  Origins origins;                    // for checks that come later, such as resolve_recipe()
};

// Reads a file of at most 1 MiB. `overrides` are the arguments of --set, "KEY=VALUE" each, applied
// in order on top of the file. Errors name settings that work on `ranks`, where they are known. An
// engine that is not used may be any. Throws UsageError.
[[nodiscard]] LoadedRecipe load_recipe(const std::filesystem::path& file,
                                       std::span<const std::string> overrides = {},
                                       KnownRanks ranks = {}, EngineUse engine = EngineUse::kUsed);

// Parses a recipe from text in the same way; `source_name` stands for the file in messages.
[[nodiscard]] LoadedRecipe parse_recipe(std::string_view text, std::string_view source_name,
                                        std::span<const std::string> overrides = {},
                                        KnownRanks ranks = {}, EngineUse engine = EngineUse::kUsed);

// Returns the recipe as TOML, with every key that the model's kind has.
// parse_recipe(to_toml(r)).recipe == r, bit for bit, for every valid recipe.
[[nodiscard]] std::string to_toml(const Recipe& recipe, const Provenance& provenance = {});

// Returns every key with its default and a comment, and an example where a key has none. The text
// reads as a recipe for a small GPT.
[[nodiscard]] std::string default_recipe_toml();

// Returns the tables of docs/recipe.md, from the table of keys, so that page and code cannot drift
// apart: Markdown, and what is refused until it exists.
[[nodiscard]] std::string recipe_reference();

}  // namespace troika
