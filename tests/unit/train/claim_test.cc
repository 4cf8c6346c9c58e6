#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/observe/recorder.h>
#include <troika/train/claim.h>
#include <troika/train/run_folder.h>
#include <unistd.h>

namespace troika {
namespace {

namespace fs = std::filesystem;

class ClaimOfARun : public testing::Test {
 protected:
  Recipe recipe(double lr = 1e-3) const {
    Recipe recipe;
    recipe.name = "run";
    recipe.runs_dir = folder_.path().string();
    recipe.data = DataOptions::named("random");
    recipe.optimizer.lr = lr;
    return recipe;
  }
  fs::path run() const { return folder_ / "run"; }
  // What a run does to the folder before its first step.
  static Claim begin(const Recipe& recipe) {
    const RunClaim claim(recipe, Existing::kRefuseOthers);
    claim.clear(1);
    write_recipe(recipe, {});
    return claim.kind();
  }
  void finish() const {
    write_file_atomically(run() / "metrics.jsonl", "{}\n");
    write_file_atomically(summary_path(run()), "{}");
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(ClaimOfARun, IsMadeWithItsRecipe) {
  EXPECT_EQ(begin(recipe()), Claim::kFresh);
  EXPECT_EQ(recipe_of_run(run()).name, "run");
}

TEST_F(ClaimOfARun, RefusesAnUnfinishedRunThatHasTakenAStep) {
  begin(recipe());
  write_file_atomically(run() / "metrics.jsonl", "{}\n");
  try {
    begin(recipe());
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("/run' holds an unfinished run"));
    EXPECT_THAT(error.hint(), testing::HasSubstr("--overwrite starts it again"));
  }
  EXPECT_TRUE(fs::exists(run() / "metrics.jsonl"));
}

TEST_F(ClaimOfARun, ReplacesARunWithoutAStepAndKeepsStrangersFiles) {
  begin(recipe());
  write_file_atomically(run() / "metrics.jsonl", "");
  for (const char* name : {"notes.txt", ".tmp-0123", "model.safetensors"}) {
    write_file_atomically(run() / name, "{}");
  }
  EXPECT_EQ(begin(recipe(2e-3)), Claim::kFresh);
  EXPECT_FALSE(fs::exists(run() / "metrics.jsonl"));
  EXPECT_FALSE(fs::exists(run() / ".tmp-0123"));
  EXPECT_FALSE(fs::exists(run() / "model.safetensors"));
  EXPECT_TRUE(fs::exists(run() / "notes.txt"));
}

TEST_F(ClaimOfARun, SaysThatAFinishedRunIsFinishedWhateverTheLayout) {
  begin(recipe());
  finish();
  Recipe other_layout = recipe();
  other_layout.parallel.data = 4;
  EXPECT_EQ(RunClaim(other_layout, Existing::kRefuseOthers).kind(), Claim::kFinished);
}

TEST_F(ClaimOfARun, IsOverwrittenWhenTheNewRunBeginsAndNoSooner) {
  begin(recipe());
  finish();
  const RunClaim claim(recipe(2e-3), Existing::kOverwrite);
  EXPECT_EQ(claim.kind(), Claim::kOverwritten);
  EXPECT_TRUE(fs::exists(summary_path(run())));
  claim.clear(1);
  EXPECT_FALSE(fs::exists(summary_path(run())));
  EXPECT_FALSE(fs::exists(run() / "recipe.toml"));
}

TEST_F(ClaimOfARun, BelongsToOneProcessAtATime) {
  {
    const RunClaim claim(recipe(), Existing::kRefuseOthers);
    try {
      const RunClaim second(recipe(), Existing::kOverwrite);
      FAIL();
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("is being written by process " +
                                                   std::to_string(getpid()) + " on host "));
    }
  }
  EXPECT_NO_THROW(RunClaim(recipe(), Existing::kRefuseOthers));
}

TEST_F(ClaimOfARun, RefusesAnotherRecipeAndLosesNothing) {
  begin(recipe());
  finish();
  for (const Existing existing : {Existing::kRefuseOthers, Existing::kResume}) {
    try {
      const RunClaim claim(recipe(2e-3), existing);
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

TEST_F(ClaimOfARun, HasNothingToResumeWithoutACheckpoint) {
  EXPECT_THROW(RunClaim(recipe(), Existing::kResume), UsageError);
  EXPECT_FALSE(fs::exists(run()));
  begin(recipe());
  EXPECT_THROW(RunClaim(recipe(), Existing::kResume), UsageError);
}

TEST_F(ClaimOfARun, TakesAwayTheFlightRecordersOfRanksThatAreNoMore) {
  begin(recipe());
  make_folders(flight_folder(run()));
  const auto kept = [&](int ranks) {
    for (const int rank : {0, 1, 2, 3}) {
      write_file_atomically(recorder_path(flight_folder(run()), rank), "record");
    }
    RunClaim(recipe(), Existing::kOverwrite).clear(ranks);
    std::string found;
    for (const int rank : {0, 1, 2, 3}) {
      if (fs::exists(recorder_path(flight_folder(run()), rank))) found += std::to_string(rank);
    }
    return found;
  };
  EXPECT_EQ(kept(2), "01");
  EXPECT_EQ(kept(1), "");  // a rank alone has no recorder
}

}  // namespace
}  // namespace troika
