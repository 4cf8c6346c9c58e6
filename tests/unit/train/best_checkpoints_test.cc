#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/checkpoint/doubt.h>
#include <troika/train/best_checkpoints.h>

#include <limits>

namespace troika {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Recipe keeping(std::int64_t count, const std::string& metric = kNoMetric) {
  Recipe recipe;
  recipe.checkpoint.keep_best = count;
  recipe.train.best_metric = metric;
  return recipe;
}

Evaluation loss(double value) {
  Evaluation evaluation;
  evaluation.held_out_loss = value;
  evaluation.metrics = {{"accuracy", value}};
  return evaluation;
}

// Which of these evaluations ask for a checkpoint.
std::vector<bool> asked(BestCheckpoints& best, const std::vector<double>& losses) {
  std::vector<bool> found;
  for (const double value : losses) found.push_back(best.observe(loss(value)));
  return found;
}

TEST(BestCheckpoints, AreAskedForWhereTheyAreAmongTheBest) {
  BestCheckpoints two(keeping(2));
  EXPECT_THAT(asked(two, {3, 5, 4, 4, 6, 1, 3}),
              ElementsAre(true, true, true, false, false, true, false));
  BestCheckpoints highest(keeping(1, "accuracy"));
  EXPECT_THAT(asked(highest, {3, 5, 4, 6}), ElementsAre(true, true, false, true));
  BestCheckpoints none(keeping(0));
  EXPECT_THAT(asked(none, {3, 2}), ElementsAre(false, false));
  EXPECT_FALSE(two.observe(std::nullopt));
  EXPECT_FALSE(two.observe(loss(std::numeric_limits<double>::quiet_NaN())));
}

TEST(BestCheckpoints, RememberAcrossARestart) {
  BestCheckpoints before(keeping(2)), after(keeping(2));
  (void)asked(before, {3, 5, 4});
  StateDict state;
  before.save(state);
  EXPECT_EQ(state.number(kHeldOutNumber), 4);
  after.load(state);
  EXPECT_THAT(asked(after, {4.5, 3.5}), ElementsAre(false, true));
  (void)after.observe(std::nullopt);
  StateDict later;
  after.save(later);
  EXPECT_FALSE(later.numbers().contains(kHeldOutNumber));
}

TEST(BestCheckpoints, SayTheFigureAlsoWhereNoneIsKept) {
  BestCheckpoints none(keeping(0));
  EXPECT_FALSE(none.observe(loss(3)));
  StateDict state;
  none.save(state);
  EXPECT_EQ(state.number(kHeldOutNumber), 3);
}

TEST(BestCheckpoints, AreSortedByTheMetric) {
  std::vector<RatedStep> steps = {{2, 1}, {3, 2}, {2, 3}, {1, 4}};
  const auto sorted = [&](const std::string& metric) {
    sort_best_first(steps, metric);
    std::vector<std::int64_t> numbers;
    for (const RatedStep& each : steps) numbers.push_back(each.step);
    return numbers;
  };
  EXPECT_THAT(sorted("loss"), ElementsAre(4, 1, 3, 2));
  EXPECT_THAT(sorted("accuracy"), ElementsAre(2, 1, 3, 4));
}

TEST(BestCheckpoints, AreNoneThatAreInDoubt) {
  const TemporaryFolder temporary;
  const CheckpointFolder folder(temporary.path());
  for (const std::int64_t step : {1, 2, 3}) {
    Manifest manifest;
    manifest.step = step;
    manifest.numbers[kHeldOutNumber] = 10.0 - static_cast<double>(step);
    std::filesystem::create_directories(folder.step_folder(step));
    folder.commit(manifest);
  }
  mark_doubtful(folder, 3, "rank 1 has other data");
  EXPECT_THAT(BestCheckpoints(keeping(1)).steps_to_keep(folder), ElementsAre(2));
}

TEST(BestCheckpoints, StayBesideTheNewest) {
  const TemporaryFolder temporary;
  const CheckpointFolder folder(temporary.path());
  const std::vector<double> losses = {4, 2, 3, 2, 5, 6};
  for (std::size_t i = 0; i < losses.size(); ++i) {
    Manifest manifest;
    manifest.step = static_cast<std::int64_t>(i) + 1;
    if (i != 4) manifest.numbers[kHeldOutNumber] = losses[i];
    std::filesystem::create_directories(folder.step_folder(manifest.step));
    folder.commit(manifest);
  }
  const BestCheckpoints best(keeping(3));
  const std::vector<std::int64_t> kept = best.steps_to_keep(folder);
  EXPECT_THAT(kept, ElementsAre(2, 4, 3));
  folder.remove_old(6, 1, kept);
  EXPECT_THAT(folder.steps(), ElementsAre(6, 4, 3, 2));
  EXPECT_THAT(BestCheckpoints(keeping(0)).steps_to_keep(folder), IsEmpty());
  folder.remove_all();
  EXPECT_THAT(folder.steps(), IsEmpty());
}

}  // namespace
}  // namespace troika
