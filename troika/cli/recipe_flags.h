// The flags of every subcommand that reads a recipe.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace troika {

// FILE, which must be given, and --set KEY=VALUE, any number of times: what load_recipe() takes.
// Both must outlive `command`.
void add_recipe_flags(CLI::App& command, std::string& file, std::vector<std::string>& overrides);

}  // namespace troika
