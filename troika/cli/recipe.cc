// The commands `troika recipe`, `troika recipe check` and `troika recipe show`.
#include <troika/base/error.h>
#include <troika/cli/command.h>
#include <troika/cli/recipe_flags.h>
#include <troika/recipe/recipe_file.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace troika {
namespace {

struct RecipeArguments {
  bool defaults = false;
  bool docs = false;
  std::string file;
  std::vector<std::string> overrides;
};

LoadedRecipe load_with_warnings(const RecipeArguments& options) {
  LoadedRecipe loaded = load_recipe(options.file, options.overrides);
  print_warnings(loaded.warnings);
  return loaded;
}

int check_recipe(const RecipeArguments& options) {
  const LoadedRecipe loaded = load_with_warnings(options);
  std::cout << options.file << ": valid recipe '" << loaded.recipe.name << "'\n";
  return 0;
}

int show_recipe(const RecipeArguments& options) {
  std::cout << to_toml(load_with_warnings(options).recipe);
  return 0;
}

int print_recipe(const RecipeArguments& options) {
  if (options.docs) {
    std::cout << recipe_reference();
  } else if (options.defaults) {
    std::cout << default_recipe_toml();
  } else {
    throw UsageError("recipe: a subcommand or flag is missing: check, show, --defaults",
                     "`troika recipe --help` explains with examples");
  }
  return 0;
}

}  // namespace

void add_recipe_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<RecipeArguments>();
  CLI::App* recipe = app.add_subcommand("recipe", "Print, check or resolve a recipe");
  recipe->add_flag("--defaults", options->defaults, "Print every key with its default");
  recipe->add_flag("--docs", options->docs, "Print the tables of docs/recipe.md")->group("");
  recipe->footer(
      "Examples:\n"
      "  troika recipe --defaults > run.toml\n"
      "  troika recipe check run.toml\n"
      "  troika recipe show run.toml --set model.layers=12");

  CLI::App* checker = recipe->add_subcommand("check", "Say whether a recipe is valid");
  add_recipe_flags(*checker, options->file, options->overrides);
  checker->footer("Example:\n  troika recipe check run.toml --set train.steps=10");
  CLI::App* shower = recipe->add_subcommand("show", "Print a recipe with every default filled in");
  add_recipe_flags(*shower, options->file, options->overrides);
  shower->footer("Example:\n  troika recipe show run.toml --set model.layers=12");

  recipe->require_subcommand(0, 1);
  // Callbacks of inner subcommands run before those of outer ones.
  checker->callback([options, &action] { action = [options] { return check_recipe(*options); }; });
  shower->callback([options, &action] { action = [options] { return show_recipe(*options); }; });
  recipe->callback([options, recipe, &action] {
    if (!recipe->get_subcommands().empty()) return;
    action = [options] { return print_recipe(*options); };
  });
}

}  // namespace troika
