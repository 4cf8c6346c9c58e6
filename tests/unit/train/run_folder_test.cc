#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/train/run_folder.h>

namespace troika {
namespace {

namespace fs = std::filesystem;

class RunFolder : public testing::Test {
 protected:
  Recipe recipe(double lr = 1e-3) const {
    Recipe recipe;
    recipe.name = "run";
    recipe.runs_dir = folder_.path().string();
    recipe.data.kind = DataKind::kRandom;
    recipe.optimizer.lr = lr;
    return recipe;
  }
  fs::path run() const { return folder_ / "run"; }
  void finish() const {
    write_file_atomically(run() / "metrics.jsonl", "{}\n");
    write_file_atomically(summary_path(run()), "{}");
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(RunFolder, IsMadeWithItsRecipe) {
  EXPECT_EQ(claim_run_folder(recipe(), Existing::kRefuseOthers), Claim::kFresh);
  EXPECT_EQ(recipe_of_run(run()).name, "run");
}

TEST_F(RunFolder, StartsAnUnfinishedRunAgainAndKeepsStrangersFiles) {
  (void)claim_run_folder(recipe(), Existing::kRefuseOthers);
  write_file_atomically(run() / "metrics.jsonl", "{}");
  write_file_atomically(run() / "notes.txt", "mine");
  EXPECT_EQ(claim_run_folder(recipe(), Existing::kRefuseOthers), Claim::kRestarted);
  EXPECT_FALSE(fs::exists(run() / "metrics.jsonl"));
  EXPECT_TRUE(fs::exists(run() / "notes.txt"));
}

TEST_F(RunFolder, SaysThatAFinishedRunIsFinishedWhateverTheLayout) {
  (void)claim_run_folder(recipe(), Existing::kRefuseOthers);
  finish();
  Recipe other_layout = recipe();
  other_layout.parallel.data = 4;
  EXPECT_EQ(claim_run_folder(other_layout, Existing::kRefuseOthers), Claim::kFinished);
  EXPECT_EQ(claim_run_folder(recipe(), Existing::kOverwrite), Claim::kOverwritten);
  EXPECT_FALSE(fs::exists(summary_path(run())));
}

TEST_F(RunFolder, RefusesAnotherRecipeAndLosesNothing) {
  (void)claim_run_folder(recipe(), Existing::kRefuseOthers);
  finish();
  for (const Existing existing : {Existing::kRefuseOthers, Existing::kResume}) {
    try {
      (void)claim_run_folder(recipe(2e-3), existing);
      FAIL();
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("another recipe"));
      for (const char* way : {"--overwrite", "--resume", "--set name="}) {
        EXPECT_THAT(error.hint(), testing::HasSubstr(way));
      }
    }
  }
  EXPECT_TRUE(fs::exists(summary_path(run())));
}

TEST_F(RunFolder, HasNothingToResumeWithoutACheckpoint) {
  EXPECT_THROW((void)claim_run_folder(recipe(), Existing::kResume), UsageError);
  (void)claim_run_folder(recipe(), Existing::kRefuseOthers);
  EXPECT_THROW((void)claim_run_folder(recipe(), Existing::kResume), UsageError);
}

TEST_F(RunFolder, IsRefusedWhereThereIsNoRun) {
  EXPECT_THROW((void)recipe_of_run(run()), DataError);
}

}  // namespace
}  // namespace troika
