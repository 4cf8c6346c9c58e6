// What the subcommands that read a recipe have in common.
#pragma once

#include <troika/recipe/recipe_file.h>

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace troika {

// Adds FILE, which must be given, and --set KEY=VALUE, any number of times: what load_recipe()
// takes. Both must outlive `command`.
void add_recipe_flags(CLI::App& command, std::string& file, std::vector<std::string>& overrides);

// Returns a line for each key that does not do what it seems to, on the ranks of the resolved
// recipe, too.
[[nodiscard]] std::vector<std::string> warnings_of_run(const LoadedRecipe& loaded,
                                                       const Recipe& resolved);
// Prints the warnings on stderr.
void print_warnings(const std::vector<std::string>& warnings);

}  // namespace troika
