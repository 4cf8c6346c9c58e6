// Trains a recipe from a program of your own: a GPT whose layers are troika's, over any axis, the
// tensor axis too. What stands behind the recipe's name is what `troika train` takes with --set.
//
//   troika launch --ranks 2 -- own_recipe recipe.toml parallel.tensor=2
#include <troika/base/error.h>
#include <troika/config/recipe_file.h>
#include <troika/train/run.h>

#include <iostream>
#include <string>
#include <vector>

namespace {

void train(const std::string& file, const std::vector<std::string>& overrides) {
  const auto environment = troika::Environment::of_process();
  const auto world = troika::world_from_environment(environment)
                         .value_or(troika::single_process_world(environment));
  const troika::LoadedRecipe loaded = troika::load_recipe(file, overrides);
  for (const std::string& warning : loaded.warnings) std::cerr << warning << std::endl;
  const troika::RunReport report = troika::run_training(loaded.recipe, world, {});
  if (world.rank == 0) std::cout << report.json << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.empty()) throw troika::UsageError("own_recipe RECIPE [KEY=VALUE ...]");
    train(words.front(), {words.begin() + 1, words.end()});
  } catch (const troika::Error& error) {
    std::cerr << "own_recipe: " << error.what() << std::endl;
    if (!error.hint().empty()) std::cerr << "hint: " << error.hint() << std::endl;
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "own_recipe: " << error.what() << std::endl;
    return 1;
  }
}
