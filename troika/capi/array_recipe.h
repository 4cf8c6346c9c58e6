// Recipes of models that are trained on arrays of the caller's.
#pragma once

#include <troika/recipe/recipe.h>

#include <filesystem>
#include <string_view>

namespace troika {

// Reads a recipe that may lack name and [data] from a text; `source` names it in messages. Throws
// UsageError naming what such a model cannot do, and a file of the model that cannot be used.
[[nodiscard]] Recipe parse_array_recipe(std::string_view text, std::string_view source);
// Reads such a recipe from a file. Throws UsageError as well where it cannot be read.
[[nodiscard]] Recipe load_array_recipe(const std::filesystem::path& file);

}  // namespace troika
