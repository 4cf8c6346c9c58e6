// Which evaluation is the best, and when patience ends.
#include <gtest/gtest.h>
#include <troika/train/best_model.h>

#include <limits>

namespace troika {
namespace {

Evaluation evaluation(double loss, std::vector<NamedValue> metrics = {}) {
  Evaluation result;
  result.held_out_loss = loss;
  result.metrics = std::move(metrics);
  return result;
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

TEST(BestModel, NoneKeepsNone) {
  BestModel best{TrainOptions()};
  EXPECT_FALSE(best.observe(1, evaluation(1)));
  EXPECT_FALSE(best.best());
}

}  // namespace
}  // namespace troika
