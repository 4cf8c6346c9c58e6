// The pages and the example recipes keep up with the table of keys.
#include <troika/base/error.h>
#include <troika/recipe/recipe_file.h>
#include <troika/recipe/refusals.h>

#include <gmock/gmock.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

namespace troika {
namespace {

using ::testing::HasSubstr;

std::filesystem::path root() {
  return std::filesystem::path(__FILE__).parent_path().parent_path().parent_path().parent_path();
}

std::string content(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) throw std::runtime_error("cannot read " + file.string());
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(Documents, RecipePageHasTheTablesOfTheCode) {
  const bool is_there =
      content(root() / "docs/recipe.md").find(recipe_reference()) != std::string::npos;
  EXPECT_TRUE(is_there) << "put the output of `troika recipe --docs` at the end of docs/recipe.md";
}

TEST(Documents, ReferenceHasEveryKeyAndRefusal) {
  const std::string reference = recipe_reference();
  for (const SchemaKey& key : recipe_schema().all_keys()) {
    EXPECT_THAT(reference, HasSubstr("| `" + std::string(key.key->name) + "` | "));
  }
  for (const Refusal& refusal : refusals()) {
    EXPECT_THAT(reference, HasSubstr("| `" + std::string(refusal.key) + "` | "));
  }
}

TEST(Documents, EveryRecipeOfTheTreeIsValid) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root() / "recipes")) {
    if (entry.path().extension() != ".toml") continue;
    const LoadedRecipe loaded = load_recipe(entry.path());
    EXPECT_TRUE(loaded.warnings.empty()) << loaded.warnings.front();
    EXPECT_EQ(loaded.recipe.name, entry.path().stem());
    ++count;
  }
  EXPECT_GE(count, 2);
}

TEST(Documents, ErrorPageHasEveryExitCode) {
  const std::string page = content(root() / "docs/errors.md");
  for (const ExitCode code :
       {ExitCode::kDone, ExitCode::kInternal, ExitCode::kUsage, ExitCode::kData,
        ExitCode::kRendezvous, ExitCode::kRankDied, ExitCode::kNonFinite, ExitCode::kStorage,
        ExitCode::kCheckpointed, ExitCode::kInterrupted}) {
    EXPECT_THAT(page, HasSubstr("\n| " + std::to_string(static_cast<int>(code)) + " | "));
  }
}

TEST(RecipeSchema, KeysAreUniqueWhateverKindsAreChosen) {
  const auto expect_unique = [](const Recipe& recipe) {
    std::set<std::string> seen;
    for (const SchemaKey& key : recipe_schema().keys_of(&recipe)) {
      EXPECT_TRUE(seen.insert(key.full_name()).second) << key.full_name();
    }
  };
  Recipe recipe;
  for (const ModelKind* kind : ModelKind::all()) {
    recipe.model = ModelOptions(*kind);
    expect_unique(recipe);
  }
  for (const DataKind* kind : DataKind::all()) {
    recipe.data = DataOptions(*kind);
    expect_unique(recipe);
  }
  for (const OptimizerKind* kind : OptimizerKind::all()) {
    recipe.optimizer.kind = Chosen(*kind);
    expect_unique(recipe);
  }
}

}  // namespace
}  // namespace troika
