#include <troika/cli/recipe_flags.h>
#include <troika/recipe/warnings.h>

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

std::vector<std::string> warnings_of_run(const LoadedRecipe& loaded, const Recipe& resolved) {
  std::vector<std::string> warnings = loaded.warnings;
  for (std::string& warning : warnings_of_layout(resolved, loaded.origins)) {
    warnings.push_back(std::move(warning));
  }
  return warnings;
}

void print_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    std::fprintf(stderr, "troika: warning: %s\n", warning.c_str());
  }
}

}  // namespace troika
