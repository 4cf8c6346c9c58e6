// The rule of the loss scale. tests/command/grad_scaler_test.py holds it to torch.amp's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/optim/dynamic_scale.h>

#include <cmath>
#include <limits>
#include <string>

namespace troika {
namespace {

using testing::HasSubstr;
using State = DynamicScale::State;

template <class ErrorType, class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const ErrorType& error) {
    EXPECT_FALSE(error.hint().empty());
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(DynamicScale, GrowsAfterEnoughFiniteStepsInARow) {
  DynamicScale rule({.initial_scale = 8, .growth_factor = 4, .growth_interval = 3});
  const auto finite = [&](int steps) {
    for (int i = 0; i < steps; ++i) rule.count_finite_step();
  };
  finite(2);
  EXPECT_EQ(rule.state(), (State{8, 2}));
  finite(1);
  EXPECT_EQ(rule.state(), (State{32, 0}));
  finite(2);
  rule.back_off();  // starts the count anew
  EXPECT_EQ(rule.state(), (State{16, 0}));
  finite(3);
  EXPECT_EQ(rule.scale(), 64);
}

TEST(DynamicScale, StaysInTheRangeOfSinglePrecision) {
  const double largest = std::ldexp(1, 127);
  DynamicScale rule({.initial_scale = largest, .growth_interval = 1});
  rule.count_finite_step();
  EXPECT_EQ(rule.state(), (State{largest, 0}));
  DynamicScale thirds({.initial_scale = 1.0 / 3});
  EXPECT_EQ(thirds.scale(), static_cast<double>(1.0F / 3));
}

TEST(DynamicScale, FailsBelowItsMinimum) {
  DynamicScale rule({.initial_scale = 4, .minimum_scale = 2});
  rule.back_off();
  EXPECT_EQ(error_of<NonFiniteError>([&] { rule.back_off(); }),
            "gradients are not finite even at a loss scale of 2");
  EXPECT_EQ(rule.scale(), 2);
  DynamicScale endless({.initial_scale = 4, .minimum_scale = 0});
  EXPECT_THROW(for (int i = 0; i < 1000; ++i) endless.back_off(), NonFiniteError);
  EXPECT_GT(endless.scale(), 0);
}

TEST(DynamicScale, GoesOnFromWhatWasSaved) {
  DynamicScale rule({.growth_interval = 3});
  rule.load({1024, 2});
  rule.count_finite_step();
  EXPECT_EQ(rule.state(), (State{2048, 0}));
  rule.load({1024, 9});  // of a run with a longer interval
  rule.count_finite_step();
  EXPECT_EQ(rule.scale(), 2048);
  for (const State& bad : {State{0, 0}, State{-2, 0}, State{1, -1}, State{1e300, 0},
                           State{std::numeric_limits<double>::quiet_NaN(), 0}}) {
    EXPECT_THAT(error_of<DataError>([&] { rule.load(bad); }), HasSubstr("is not possible"));
  }
  EXPECT_EQ(rule.scale(), 2048);
}

TEST(DynamicScale, IsOneWhereItIsNotEnabled) {
  const DynamicScale rule({.enabled = false});
  EXPECT_EQ(rule.scale(), 1);
  EXPECT_EQ(rule.state(), State{});
}

TEST(DynamicScale, RefusesOptionsThatMakeNoSense) {
  const auto says = [](const DynamicScaleOptions& options) {
    return error_of<UsageError>([&] { const DynamicScale rule(options); });
  };
  EXPECT_EQ(says({.initial_scale = 0}), "gradient scaler: initial_scale = 0");
  EXPECT_EQ(says({.initial_scale = 1e39}), "gradient scaler: initial_scale = 1e+39");
  EXPECT_EQ(says({.growth_factor = 1}), "gradient scaler: growth_factor = 1");
  EXPECT_EQ(says({.backoff_factor = 1}), "gradient scaler: backoff_factor = 1");
  EXPECT_EQ(says({.growth_interval = 0}), "gradient scaler: growth_interval = 0");
  EXPECT_EQ(says({.initial_scale = 1, .minimum_scale = 2}), "gradient scaler: minimum_scale = 2");
}

}  // namespace
}  // namespace troika
