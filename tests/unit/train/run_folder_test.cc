#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/train/run_folder.h>

namespace troika {
namespace {

TEST(RunFolder, GivesItsRecipeBack) {
  const TemporaryFolder folder;
  Recipe recipe;
  recipe.name = "run";
  recipe.runs_dir = folder.path().string();
  recipe.data = DataOptions::named("random");
  make_folders(run_folder(recipe));
  write_recipe(recipe, {{"machine", "a test's"}});
  EXPECT_EQ(recipe_of_run(run_folder(recipe)), recipe);
}

TEST(RunFolder, IsRefusedWhereThereIsNoRun) {
  const TemporaryFolder folder;
  try {
    (void)recipe_of_run(folder.path());
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("is no run folder"));
  }
}

}  // namespace
}  // namespace troika
