#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/optim/schedule.h>

#include <cmath>

namespace troika {
namespace {

struct ScheduleCase {
  OptimizerOptions optimizer;
  std::int64_t steps;
  [[nodiscard]] double at(std::int64_t step) const {
    constexpr std::int64_t kGlobalBatchSize = 64;
    return learning_rate(optimizer, steps, kGlobalBatchSize, step);
  }
};

ScheduleCase case_of(std::string_view kind, std::int64_t warmup, std::int64_t steps) {
  ScheduleCase c{.optimizer = {}, .steps = steps};
  c.optimizer.schedule = kind;
  c.optimizer.lr = 1;
  c.optimizer.min_lr = 0.1;
  c.optimizer.warmup_steps = warmup;
  return c;
}

constexpr std::array<std::string_view, 4> kKinds = {"constant", "linear", "cosine", "wsd"};

TEST(LearningRate, WarmsUpEvenly) {
  for (const std::string_view kind : kKinds) {
    const ScheduleCase c = case_of(kind, 10, 100);
    for (std::int64_t step = 1; step <= 10; ++step) {
      EXPECT_DOUBLE_EQ(c.at(step), 0.1 * static_cast<double>(step));
    }
  }
}

TEST(LearningRate, FollowsItsShape) {
  EXPECT_EQ(case_of("constant", 10, 110).at(60), 1);
  EXPECT_EQ(case_of("constant", 10, 110).at(110), 1);
  EXPECT_DOUBLE_EQ(case_of("linear", 10, 110).at(60), 0.55);
  EXPECT_DOUBLE_EQ(case_of("cosine", 10, 110).at(60), 0.55);
  EXPECT_DOUBLE_EQ(case_of("cosine", 0, 90).at(30), 0.1 + 0.9 * 0.75);
  const ScheduleCase wsd = case_of("wsd", 10, 100);
  EXPECT_EQ(wsd.at(11), 1);
  EXPECT_EQ(wsd.at(80), 1);
  EXPECT_LT(wsd.at(81), 1);
  EXPECT_DOUBLE_EQ(wsd.at(85), 0.1 + 0.9 * 0.5);  // a quarter of the decay: 1 - sqrt(1 / 4)
}

TEST(LearningRate, EndsAtTheMinimumAndStaysThere) {
  for (const std::string_view kind : kKinds) {
    const ScheduleCase c = case_of(kind, 7, 93);
    const double last = kind == "constant" ? 1 : 0.1;
    EXPECT_NEAR(c.at(93), last, 1e-15);
    EXPECT_EQ(c.at(1000), c.at(93));
  }
}

TEST(LearningRate, NeverRisesAfterWarmUp) {
  for (const std::string_view kind : kKinds) {
    const ScheduleCase c = case_of(kind, 5, 60);
    for (std::int64_t step = 5; step < 60; ++step) EXPECT_LE(c.at(step + 1), c.at(step));
  }
}

TEST(LearningRate, HandlesShortRuns) {
  for (const std::string_view kind : kKinds) {
    EXPECT_DOUBLE_EQ(case_of(kind, 20, 5).at(5), 0.25);  // ends inside the warm-up
    EXPECT_EQ(case_of(kind, 20, 20).at(20), 1);
    EXPECT_EQ(case_of(kind, 1, 1).at(1), 1);
    const double only = kind == "constant" ? 1 : 0.1;
    EXPECT_NEAR(case_of(kind, 0, 1).at(1), only, 1e-15);
    EXPECT_TRUE(std::isfinite(case_of(kind, 95, 100).at(96)));  // less than the decay is left
    EXPECT_NEAR(case_of(kind, 95, 100).at(100), only, 1e-15);
  }
}

TEST(LearningRate, ScalesWithTheBatch) {
  for (const std::string_view kind : kKinds) {
    ScheduleCase c = case_of(kind, 0, 100);
    const ScheduleCase plain = c;
    c.optimizer.lr_base_batch_size = 16;
    for (const std::int64_t step : {1, 50, 99, 100}) {
      EXPECT_DOUBLE_EQ(c.at(step), 4 * plain.at(step));
    }
  }
}

TEST(LearningRate, ScaledWarmUpStartsFromTheUnscaledRate) {
  ScheduleCase c = case_of("constant", 4, 100);
  c.optimizer.lr_base_batch_size = 16;
  EXPECT_DOUBLE_EQ(c.at(1), 1);
  EXPECT_DOUBLE_EQ(c.at(2), 2);
  EXPECT_DOUBLE_EQ(c.at(3), 3);
  EXPECT_DOUBLE_EQ(c.at(4), 4);
  EXPECT_DOUBLE_EQ(c.at(5), 4);
  c.optimizer.warmup_steps = 1;
  EXPECT_DOUBLE_EQ(c.at(1), 4);
}

TEST(LearningRate, ASmallerBatchNeedsNoWarmUp) {
  ScheduleCase c = case_of("constant", 4, 100);
  c.optimizer.lr_base_batch_size = 128;
  for (std::int64_t step = 1; step < 8; ++step) EXPECT_DOUBLE_EQ(c.at(step), 0.5);
}

TEST(LearningRate, RefusesAStepBeforeTheFirst) {
  EXPECT_THROW((void)case_of("cosine", 0, 10).at(0), InternalError);
}

}  // namespace
}  // namespace troika
