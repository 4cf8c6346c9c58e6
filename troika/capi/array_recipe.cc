#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/capi/array_recipe.h>
#include <troika/recipe/recipe_file.h>

#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

// Not from files, and under no name: the caller has both.
std::vector<std::string> fixed_keys() {
  return {"name=array", "data.kind=random"};
}

Recipe for_arrays(LoadedRecipe loaded, std::string_view source) {
  Recipe& recipe = loaded.recipe;
  const ModelKind& kind = recipe.model.kind();
  if (kind.has_open_sizes(recipe.model.options(), loaded.origins)) {
    kind.close_sizes(recipe.model.options(), nullptr, loaded.origins);
  }
  if (recipe.train.precision == Precision::kFloat16) {
    throw UsageError(
        std::string(source) + ": train.precision \"fp16\" cannot be trained on arrays of one's own",
        "write precision = \"bf16\", \"fp32\" or \"fp64\"");
  }
  if (recipe.train.precision == Precision::kAuto) recipe.train.precision = Precision::kFloat32;
  kind.check_ready(recipe.model.options(), recipe.model.loss, loaded.origins);
  return recipe;
}

}  // namespace

Recipe parse_array_recipe(std::string_view text, std::string_view source) {
  if (text.ends_with(".toml") && text.find_first_of("\n=[") == std::string_view::npos) {
    throw UsageError(std::string(source) + " is " + quote(text, 200) + ", not the text of a recipe",
                     "troika_model_create_from_file() takes the path of one");
  }
  return for_arrays(parse_recipe(text, source, fixed_keys()), source);
}

Recipe load_array_recipe(const std::filesystem::path& file) {
  return for_arrays(load_recipe(file, fixed_keys()), file.string());
}

}  // namespace troika
