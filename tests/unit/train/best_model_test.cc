// Which evaluation is the best, and when patience ends.
#include <gmock/gmock.h>
#include <troika/train/best_model.h>
#include <troika/train/undefined_metrics.h>

#include <limits>

namespace troika {
namespace {

Evaluation evaluation(double loss, std::vector<NamedValue> metrics = {}) {
  Evaluation result;
  result.held_out_loss = loss;
  result.metrics = std::move(metrics);
  return result;
}

// Where its file is in doubt, the next model takes its place, however good it is.
TEST(BestModel, IsTheNextOnceItIsForgotten) {
  TrainOptions options;
  options.best_metric = "loss";
  BestModel best(options);
  EXPECT_TRUE(best.observe(10, evaluation(2)));
  best.forget_best();
  EXPECT_FALSE(best.best());
  EXPECT_TRUE(best.observe(20, evaluation(3)));
  EXPECT_FALSE(best.observe(30, evaluation(3.5)));
  EXPECT_EQ(best.best()->step, 20);
}

TEST(BestModel, ALossIsBetterWhereItIsLower) {
  TrainOptions options;
  options.best_metric = "loss";
  options.early_stop_patience = 2;
  BestModel best(options);
  EXPECT_TRUE(best.observe(10, evaluation(2)));
  EXPECT_FALSE(best.observe(20, evaluation(2)));
  EXPECT_TRUE(best.observe(30, evaluation(1.5)));
  EXPECT_FALSE(best.observe(40, evaluation(1.7)));
  EXPECT_FALSE(best.gives_up());
  EXPECT_FALSE(best.observe(50, evaluation(std::numeric_limits<double>::quiet_NaN())));
  EXPECT_TRUE(best.gives_up());
  EXPECT_EQ(best.best()->step, 30);
  EXPECT_EQ(best.best()->value, 1.5);
}

TEST(BestModel, AMetricKnowsItsDirection) {
  TrainOptions options;
  options.best_metric = "auc";
  BestModel best(options);
  EXPECT_FALSE(best.observe(1, evaluation(1)));  // had no value
  EXPECT_TRUE(best.observe(2, evaluation(1, {{"accuracy", 0.9}, {"auc", 0.5}})));
  EXPECT_FALSE(best.observe(3, evaluation(0.1, {{"auc", 0.4}})));
  EXPECT_TRUE(best.observe(4, evaluation(3, {{"auc", 0.6}})));
  EXPECT_FALSE(best.gives_up());
}

// Held-out samples of one class have no AUC, whatever the model is.
TEST(BestModel, AMetricWithoutAValueIsNoReasonToStop) {
  TrainOptions options;
  options.best_metric = "auc";
  options.early_stop_patience = 2;
  BestModel best(options);
  for (std::int64_t step = 1; step < 9; ++step) EXPECT_FALSE(best.observe(step, evaluation(1)));
  EXPECT_FALSE(best.gives_up());
  EXPECT_EQ(best.evaluations_without_gain(), 0);
  EXPECT_TRUE(best.observe(9, evaluation(1, {{"auc", 0.6}})));
  EXPECT_FALSE(best.observe(10, evaluation(1, {{"auc", 0.5}})));
  EXPECT_FALSE(best.observe(11, evaluation(1)));
  EXPECT_EQ(best.evaluations_without_gain(), 1);
  // A model that has diverged has none either, and is no better.
  EXPECT_FALSE(best.observe(12, evaluation(std::numeric_limits<double>::infinity())));
  EXPECT_TRUE(best.gives_up());
}

TEST(UndefinedMetrics, AreNamedOnceWithTheReason) {
  TrainOptions options;
  options.metrics = {"accuracy", "auc", "f1"};
  options.best_metric = "auc";
  UndefinedMetrics undefined(options);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(undefined.observe(evaluation(nan)), testing::IsEmpty());
  EXPECT_THAT(undefined.observe(evaluation(1, {{"accuracy", 1}, {"f1", 1}})),
              testing::ElementsAre(
                  "of the held-out samples, auc has no value: it needs samples of both classes, "
                  "and these are all of one; such evaluations find no best model"));
  EXPECT_THAT(undefined.observe(evaluation(1, {{"f1", 1}})),
              testing::ElementsAre(
                  "of the held-out samples, accuracy has no value: it needs a target that counts"));
  EXPECT_THAT(undefined.observe(evaluation(1)), testing::SizeIs(1)) << "f1";
  EXPECT_THAT(undefined.observe(evaluation(1)), testing::IsEmpty());
}

TEST(BestModel, NoneKeepsNone) {
  BestModel best{TrainOptions()};
  EXPECT_FALSE(best.observe(1, evaluation(1)));
  EXPECT_FALSE(best.best());
}

}  // namespace
}  // namespace troika
