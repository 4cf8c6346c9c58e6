// Checkpoints that may hold what was trained on other data: which are marked, and which stays.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/file.h>
#include <troika/recipe/resolve.h>
#include <troika/train/best_model.h>
#include <troika/train/checkpointer.h>
#include <troika/train/run_folder.h>

#include <map>
#include <string>

namespace troika {
namespace {

using testing::ElementsAre;
using testing::Pair;

// A run of one rank that takes a checkpoint after each step, and keeps the two newest.
class DoubtfulCheckpoints : public testing::Test {
 protected:
  DoubtfulCheckpoints()
      : recipe_(make()), job_(join_rendezvous(World(), recipe_), recipe_, {}), best_(recipe_) {
    make_folders(run_folder(recipe_));
    checkpointer_.emplace(recipe_, job_, Metadata{{"troika", "test"}}, best_, nullptr);
  }
  void step(std::int64_t step, const DataDoubt& doubt = {}) {
    checkpointer_->doubt(doubt, BestModel(recipe_.train));
    checkpointer_->after_step(step, {.wants_checkpoint = true}, [&] {
      StateDict state;
      state.add("w", ShardDescriptor::whole({1}, true), at::full({1}, static_cast<float>(step)));
      return state;
    });
    checkpointer_->finish();
  }
  // Returns the reason of doubt of each checkpoint that is there, by step.
  [[nodiscard]] std::map<std::int64_t, std::string> doubts() const {
    std::map<std::int64_t, std::string> found;
    const CheckpointFolder folder = checkpoints_of(recipe_);
    for (const std::int64_t each : folder.steps()) {
      const Metadata provenance = folder.read(each).provenance;
      const auto doubt = provenance.find(kDoubt);
      found[each] = doubt == provenance.end() ? "" : doubt->second;
    }
    return found;
  }
  std::optional<Checkpointer> checkpointer_;

 private:
  Recipe make() {
    Recipe recipe;
    recipe.name = "run";
    recipe.runs_dir = folder_.path().string();
    recipe.data = DataOptions::named("random");
    recipe.checkpoint.keep = 2;
    return resolve_recipe(recipe, 1, Origins());
  }

  TemporaryFolder folder_;
  Recipe recipe_;
  Job job_;
  BestCheckpoints best_;
};

TEST_F(DoubtfulCheckpoints, AreThoseThatHoldWhatWasTrainedOnOtherData) {
  step(1);
  step(2);
  step(3, {.possible = 3});
  step(4, {.possible = 3});
  // The newest one before stays beside the two newest.
  EXPECT_THAT(doubts(), ElementsAre(Pair(2, ""), Pair(3, ""), Pair(4, "")));
  // Once the data are known to differ those are marked that there are, and those that follow.
  step(5, {.certain = 3, .reason = "other data"});
  EXPECT_THAT(doubts(), ElementsAre(Pair(2, ""), Pair(4, "other data"), Pair(5, "other data")));
  step(6, {.certain = 3, .reason = "other data"});
  EXPECT_THAT(doubts(), ElementsAre(Pair(2, ""), Pair(5, "other data"), Pair(6, "other data")));
}

TEST_F(DoubtfulCheckpoints, AreNoneOnceTheDataAreTheSame) {
  for (int i = 1; i < 4; ++i) step(i, {.possible = 2});
  EXPECT_THAT(doubts(), ElementsAre(Pair(1, ""), Pair(2, ""), Pair(3, "")));
  step(4);
  EXPECT_THAT(doubts(), ElementsAre(Pair(3, ""), Pair(4, "")));
}

// Another worker turns out to have had other data before the first one.
TEST_F(DoubtfulCheckpoints, BeginEarlierWhereAnotherWorkerHasTrainedBefore) {
  step(1);
  step(2, {.possible = 2});
  step(3, {.possible = 2, .certain = 3, .reason = "later"});
  step(4, {.certain = 2, .reason = "later"});
  EXPECT_THAT(doubts(), ElementsAre(Pair(1, ""), Pair(3, "later"), Pair(4, "later")));
}

}  // namespace
}  // namespace troika
