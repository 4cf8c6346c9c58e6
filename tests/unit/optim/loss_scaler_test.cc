#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/optim/loss_scaler.h>

#include <limits>

namespace troika {
namespace {

using Verdict = LossScaler::Verdict;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(LossScaler, HalvesAndSkipsWhereGradientsAreNotFinite) {
  LossScaler scaler;
  EXPECT_EQ(scaler.scale(), 65536);
  EXPECT_EQ(scaler.update(1.0, 1), Verdict::kApply);
  EXPECT_EQ(scaler.update(kInfinity, 2), Verdict::kSkip);
  EXPECT_EQ(scaler.scale(), 32768);
  EXPECT_EQ(scaler.update(kNan, 3), Verdict::kSkip);
  EXPECT_EQ(scaler.scale(), 16384);
}

TEST(LossScaler, DoublesAfterEnoughGoodStepsInARow) {
  LossScaler scaler;
  const auto good = [&](std::int64_t steps) {
    for (std::int64_t i = 0; i < steps; ++i) EXPECT_EQ(scaler.update(1.0, 1), Verdict::kApply);
  };
  good(LossScaler::kGrowthSteps - 1);
  EXPECT_EQ(scaler.scale(), 65536);
  EXPECT_EQ(scaler.update(kInfinity, 1), Verdict::kSkip);  // starts the count anew
  good(LossScaler::kGrowthSteps - 1);
  EXPECT_EQ(scaler.scale(), 32768);
  good(1);
  EXPECT_EQ(scaler.scale(), 65536);
}

TEST(LossScaler, StopsAtItsBounds) {
  LossScaler high({LossScaler::kMaximum, LossScaler::kGrowthSteps - 1});
  EXPECT_EQ(high.update(1.0, 1), Verdict::kApply);
  EXPECT_EQ(high.scale(), LossScaler::kMaximum);

  LossScaler low({LossScaler::kMinimum, 5});
  try {
    (void)low.update(kInfinity, 123);
    FAIL() << "no error";
  } catch (const NonFiniteError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("step 123"));
  }
}

TEST(LossScaler, GoesOnFromASavedState) {
  LossScaler first;
  (void)first.update(kInfinity, 1);
  (void)first.update(1.0, 2);
  const LossScaler second(first.state());
  EXPECT_EQ(second.state(), (LossScaler::State{32768, 1}));
  for (const LossScaler::State& bad :
       {LossScaler::State{3, 0}, LossScaler::State{0, 0}, LossScaler::State{kNan, 0},
        LossScaler::State{kInfinity, 0}, LossScaler::State{2 * LossScaler::kMaximum, 0},
        LossScaler::State{0.5, 0}, LossScaler::State{2, -1},
        LossScaler::State{2, LossScaler::kGrowthSteps}}) {
    EXPECT_THROW((void)LossScaler(bad), DataError);
  }
}

}  // namespace
}  // namespace troika
