#include <troika/cli/recipe_flags.h>

#include <CLI/CLI.hpp>
#include <cstdio>

namespace troika {

void add_recipe_flags(CLI::App& command, std::string& file, std::vector<std::string>& overrides) {
  command.add_option("FILE", file, "The recipe")->required();
  command
      .add_option("--set", overrides, "Override a key, any number of times: --set train.steps=10")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

void print_warnings(const LoadedRecipe& loaded) {
  for (const std::string& warning : loaded.warnings) {
    std::fprintf(stderr, "troika: warning: %s\n", warning.c_str());
  }
}

}  // namespace troika
