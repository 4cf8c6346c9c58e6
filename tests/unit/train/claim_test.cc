#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/observe/machine.h>
#include <troika/observe/recorder.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/checkpointer.h>
#include <troika/train/claim.h>
#include <troika/train/run_folder.h>
#include <unistd.h>

#include <tuple>

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
  static void write_checkpoint(const fs::path& folder) {
    make_folders(folder / "step-00000001");
    write_file_atomically(folder / "step-00000001/manifest.json", "{}");
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

TEST_F(ClaimOfARun, StartsAnUnfinishedRunAgain) {
  begin(recipe());
  write_file_atomically(run() / "metrics.jsonl", "{}\n");
  EXPECT_EQ(begin(recipe()), Claim::kRestarted);
  EXPECT_FALSE(fs::exists(run() / "metrics.jsonl"));
}

TEST_F(ClaimOfARun, GoesOnFromACheckpoint) {
  begin(recipe());
  write_file_atomically(run() / "metrics.jsonl", "{}\n");
  make_folders(run() / "checkpoints/step-00000001");
  EXPECT_EQ(RunClaim(recipe(), Existing::kRefuseOthers).kind(), Claim::kRestarted);
  write_file_atomically(run() / "checkpoints/step-00000001/manifest.json", "{}");
  for (const Existing existing : {Existing::kRefuseOthers, Existing::kResume}) {
    const RunClaim claim(recipe(), existing);
    EXPECT_EQ(claim.kind(), Claim::kResumed);
    claim.clear(1);
  }
  EXPECT_TRUE(fs::exists(run() / "metrics.jsonl"));
  EXPECT_TRUE(fs::exists(run() / "checkpoints/step-00000001/manifest.json"));
  EXPECT_THROW(begin(recipe(2e-3)), UsageError);
  EXPECT_EQ(RunClaim(recipe(2e-3), Existing::kResume).kind(), Claim::kResumed);
}

TEST_F(ClaimOfARun, GoesOnAfterItsEndWithMoreSteps) {
  begin(recipe());
  finish();
  write_checkpoint(run() / "checkpoints");
  Recipe longer = recipe();
  longer.train.steps += 5;
  // Its model is gone: the checkpoint has it.
  EXPECT_EQ(RunClaim(recipe(), Existing::kRefuseOthers).kind(), Claim::kResumed);
  write_file_atomically(run() / "model.safetensors", "");
  EXPECT_EQ(RunClaim(recipe(2e-3), Existing::kResume).kind(), Claim::kFinished);
  const RunClaim claim(longer, Existing::kResume);
  EXPECT_EQ(claim.kind(), Claim::kResumed);
  claim.clear(1);
  EXPECT_FALSE(fs::exists(summary_path(run())));
  EXPECT_TRUE(fs::exists(run() / "checkpoints/step-00000001"));
}

// Neither hint leads to the other refusal.
TEST_F(ClaimOfARun, SaysWhatIsLeftWithoutACheckpointToGoOnFrom) {
  begin(recipe());
  Recipe longer = recipe();
  longer.train.steps += 5;
  const auto hint = [&](Existing existing) {
    try {
      const RunClaim claim(longer, existing);
    } catch (const UsageError& error) {
      return error.hint();
    }
    return std::string();
  };
  write_file_atomically(run() / "metrics.jsonl", "{}\n");
  for (const bool finished : {false, true}) {
    if (finished) finish();
    for (const Existing existing : {Existing::kRefuseOthers, Existing::kResume}) {
      EXPECT_THAT(hint(existing), testing::StartsWith("there is no checkpoint that --resume"));
      EXPECT_EQ(hint(existing).find("model.from=" + run().string()) != std::string::npos, finished);
      EXPECT_THAT(hint(existing), testing::HasSubstr("--overwrite"));
    }
  }
}

TEST_F(ClaimOfARun, FindsAndRemovesCheckpointsThatLieElsewhere) {
  Recipe elsewhere = recipe();
  elsewhere.checkpoint.folder = (run().parent_path() / "elsewhere").string();
  const fs::path folder = run().parent_path() / "elsewhere/run";
  begin(elsewhere);
  write_file_atomically(run() / "metrics.jsonl", "{}\n");
  write_checkpoint(folder);
  write_file_atomically(folder / "notes.txt", "mine");
  EXPECT_EQ(checkpoints_of(run()).path(), folder);
  EXPECT_EQ(RunClaim(elsewhere, Existing::kRefuseOthers).kind(), Claim::kResumed);
  EXPECT_THROW(RunClaim(recipe(), Existing::kResume), UsageError);
  RunClaim(recipe(), Existing::kOverwrite).clear(1);
  EXPECT_FALSE(fs::exists(folder / "step-00000001"));
  EXPECT_TRUE(fs::exists(folder / "notes.txt"));
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

// Whatever else of the run is gone.
TEST_F(ClaimOfARun, NeverRemovesCheckpointsUnasked) {
  Recipe elsewhere = recipe();
  elsewhere.checkpoint.folder = (run().parent_path() / "elsewhere").string();
  for (const Recipe& of_the_run : {recipe(), elsewhere}) {
    begin(of_the_run);
    const CheckpointFolder checkpoints = checkpoints_of(of_the_run);
    make_folders(checkpoints.step_folder(1));
    Manifest manifest;
    manifest.step = 1;
    manifest.recipe = to_toml(of_the_run);
    checkpoints.commit(manifest);
    const auto refuses = [&](const Recipe& other) {
      EXPECT_THROW(begin(other), UsageError);
      EXPECT_EQ(checkpoints.steps().size(), 1U);
    };
    EXPECT_EQ(RunClaim(of_the_run, Existing::kRefuseOthers).kind(), Claim::kResumed);
    Recipe another = of_the_run;
    another.optimizer.lr = 2e-3;
    refuses(another);
    fs::remove(recipe_path(run()));
    for (const Existing existing : {Existing::kRefuseOthers, Existing::kResume}) {
      EXPECT_EQ(RunClaim(of_the_run, existing).kind(), Claim::kResumed);
    }
    refuses(another);
    write_file_atomically(checkpoints.step_folder(1) / "manifest.json", "{}");
    refuses(of_the_run);
    if (checkpoints.path() == run() / "checkpoints") refuses(elsewhere);
    write_file_atomically(run() / "metrics.jsonl", "{}\n");
    refuses(of_the_run);
    RunClaim(of_the_run, Existing::kOverwrite).clear(1);
    EXPECT_TRUE(checkpoints.steps().empty());
  }
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

// Two runs of one name, whose folders differ, and whose checkpoints would not.
TEST_F(ClaimOfARun, HoldsTheFolderOfItsCheckpointsToo) {
  Recipe one = recipe(), other = recipe();
  const fs::path checkpoints = run().parent_path() / "checkpoints";
  one.checkpoint.folder = other.checkpoint.folder = checkpoints.string();
  other.runs_dir = (run().parent_path() / "elsewhere").string();
  {
    const RunClaim claim(one, Existing::kRefuseOthers);
    for (const Existing existing : {Existing::kRefuseOthers, Existing::kOverwrite}) {
      try {
        const RunClaim second(other, existing);
        FAIL();
      } catch (const UsageError& error) {
        EXPECT_EQ(error.what(), shown_path(checkpoints / "run") + " is being written by process " +
                                    std::to_string(getpid()) + " on host " + host_name());
        EXPECT_THAT(error.hint(), testing::HasSubstr("--set name=NAME"));
      }
    }
    other.name = "other";
    EXPECT_NO_THROW(RunClaim(other, Existing::kRefuseOthers));
    other.name = "run";
  }
  EXPECT_NO_THROW(RunClaim(other, Existing::kRefuseOthers));
}

TEST_F(ClaimOfARun, GoesOnAfterAnEarlyStopWithMorePatience) {
  Recipe patient = recipe();
  patient.train.steps = 10;
  patient.train.best_metric = "loss";
  patient.train.early_stop_patience = 2;
  begin(patient);
  finish();
  write_file_atomically(run() / "metrics.jsonl", "{\"step\": 6}\n");
  write_file_atomically(run() / "model.safetensors", "");
  write_checkpoint(run() / "checkpoints");
  const auto with_patience = [&](std::int64_t patience, Existing existing) {
    Recipe changed = patient;
    changed.train.early_stop_patience = patience;
    return RunClaim(changed, existing).kind();
  };
  EXPECT_EQ(with_patience(2, Existing::kResume), Claim::kFinished);
  EXPECT_EQ(with_patience(1, Existing::kResume), Claim::kFinished);
  EXPECT_EQ(with_patience(3, Existing::kResume), Claim::kResumed);
  EXPECT_EQ(with_patience(0, Existing::kResume), Claim::kResumed);  // it never stops early
  EXPECT_THROW(with_patience(3, Existing::kRefuseOthers), UsageError);
  // All steps are taken: there is nothing to wait for.
  write_file_atomically(run() / "metrics.jsonl", "{\"step\": 10}\n");
  EXPECT_EQ(with_patience(3, Existing::kResume), Claim::kFinished);
}

TEST_F(ClaimOfARun, RefusesAnotherRecipeAndLosesNothing) {
  begin(recipe());
  finish();
  Recipe another = recipe();
  another.seed = 5;
  for (const auto& [other, existing, named] :
       {std::tuple(recipe(2e-3), Existing::kRefuseOthers, "optimizer.lr was 1e-3 and is 2e-3"),
        std::tuple(another, Existing::kRefuseOthers, "seed was 1337 and is 5"),
        std::tuple(another, Existing::kResume, "seed was 1337 and is 5")}) {
    try {
      const RunClaim claim(other, existing);
      FAIL();
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("another recipe"));
      EXPECT_THAT(error.what(), testing::HasSubstr(named));
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
