// The vectorisable exponential against the C library's.
#include <gtest/gtest.h>
#include <troika/ops/cpu/exponential.h>

#include <cmath>

namespace troika::ops {
namespace {

template <typename Real>
class ExponentialOf : public testing::Test {};

using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(ExponentialOf, Types);

TYPED_TEST(ExponentialOf, NegativeNumbersIsExactToTwoUnits) {
  constexpr int kSteps = 100000;
  double worst = 0;
  for (int i = 0; i <= kSteps; ++i) {
    const auto x = static_cast<TypeParam>(Exponential<TypeParam>::kLeast * i / kSteps);
    const long double exact = std::exp(static_cast<long double>(x));
    const auto apart = static_cast<double>((exponential_of_negative(x) - exact) / exact);
    worst = std::max(worst, std::abs(apart));
  }
  EXPECT_LT(worst, 2 * std::numeric_limits<TypeParam>::epsilon());
}

TYPED_TEST(ExponentialOf, EndsAndNaNAreExact) {
  using Limits = std::numeric_limits<TypeParam>;
  EXPECT_EQ(exponential_of_negative(TypeParam(0)), 1);
  EXPECT_EQ(exponential_of_negative(TypeParam(-0.0)), 1);
  EXPECT_EQ(exponential_of_negative(-Limits::infinity()), 0);
  EXPECT_EQ(exponential_of_negative(Limits::lowest()), 0);
  EXPECT_EQ(exponential_of_negative(Exponential<TypeParam>::kLeast - 1), 0);
  EXPECT_TRUE(std::isnan(exponential_of_negative(Limits::quiet_NaN())));
}

}  // namespace
}  // namespace troika::ops
