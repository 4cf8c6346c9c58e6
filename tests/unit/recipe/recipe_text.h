// Recipes for the tests, and what reading one says.
#pragma once

#include <troika/base/error.h>
#include <troika/recipe/recipe_file.h>

#include <string>
#include <vector>

namespace troika::testing {

// A valid GPT recipe; line 1 is the name, line 3 [model], 12 [data], 16 [train].
inline const std::string kGptRecipe =
    "name = \"test\"\n"        // 1
    "\n"                       // 2
    "[model]\n"                // 3
    "kind = \"gpt\"\n"         // 4
    "layers = 2\n"             // 5
    "dim = 64\n"               // 6
    "heads = 4\n"              // 7
    "ffn_dim = 128\n"          // 8
    "vocab_size = 256\n"       // 9
    "seq_len = 32\n"           // 10
    "\n"                       // 11
    "[data]\n"                 // 12
    "kind = \"text\"\n"        // 13
    "paths = [\"a/*.txt\"]\n"  // 14
    "\n"                       // 15
    "[train]\n"                // 16
    "steps = 10\n";            // 17

inline const std::string kMlpRecipe =
    "name = \"test\"\n"
    "[model]\n"
    "kind = \"mlp\"\n"
    "input_dim = 8\n"
    "hidden_dims = [16, 16]\n"
    "output_dim = 4\n"
    "[data]\n"
    "kind = \"random\"\n";

// `text` with the first `from` replaced.
inline std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::logic_error("'" + from + "' is not in the recipe");
  return text.replace(at, from.size(), to);
}

inline LoadedRecipe read(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_recipe(text, "recipe.toml", overrides);
}

// The message of the UsageError that reading throws; empty if it throws none. Another kind of
// exception passes through.
inline std::string error_of(const std::string& text,
                            const std::vector<std::string>& overrides = {}) {
  try {
    (void)read(text, overrides);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace troika::testing
