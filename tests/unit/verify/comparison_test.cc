// What counts as equal numbers: bounds to the digit, bits, names and shapes.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/models/gpt/options.h>
#include <troika/verify/comparison.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace troika {
namespace {

using testing::HasSubstr;

std::vector<NamedTensor> two(double first, double second) {
  return {{"b", at::full({2}, first, at::kDouble)}, {"a", at::full({1, 2}, second, at::kDouble)}};
}

Comparison compared(const std::vector<NamedTensor>& expected,
                    const std::vector<NamedTensor>& actual, Tolerance tolerance = {}) {
  RunComparison comparison({"b", "a"});
  comparison.compare("gradients of step 1", expected, actual, tolerance);
  return comparison.result();
}

TEST(Comparison, SameBitsAgree) {
  const Comparison found = compared(two(1, 2), two(1, 2), Tolerance::same_bits());
  EXPECT_TRUE(found.agrees());
  EXPECT_TRUE(found.same_bits);
  EXPECT_EQ(found.of_tolerance, 0);
}

TEST(Comparison, AllowsTauOfEachTensorAndAFloorOfTheLargest) {
  // 1e-12 x 1 + 1e-14 x 100 = 2e-12 are allowed.
  const Comparison close = compared(two(1, 100), two(1 + 1.9e-12, 100));
  EXPECT_TRUE(close.agrees()) << close.first_difference;
  EXPECT_FALSE(close.same_bits);
  EXPECT_NEAR(close.of_tolerance, 0.95, 0.001);
  EXPECT_NEAR(close.difference, 1.9e-12, 1e-15);
  EXPECT_EQ(close.largest_of, "gradients of step 1: b");
  EXPECT_FALSE(compared(two(1, 100), two(1 + 2.1e-12, 100)).agrees());
  EXPECT_TRUE(compared(two(1, 100), two(1 + 1.0e-11, 100), {.tau = 1e-11}).agrees());
  // What is zero but for rounding is measured by the largest.
  EXPECT_TRUE(compared(two(0, 100), two(0.9e-12, 100)).agrees());
  EXPECT_FALSE(compared(two(0, 100), two(1.1e-12, 100)).agrees());
  EXPECT_FALSE(compared(two(1, 100), two(1 + 1e-15, 100), Tolerance::same_bits()).agrees());
}

TEST(Comparison, TargetsMissingInBothAreEqual) {
  const double missing = std::numeric_limits<double>::quiet_NaN();
  const auto batch = [&](double first, double second) {
    return with_missing_apart({{"b", at::tensor({1.0, first, second}, at::kDouble)}});
  };
  EXPECT_TRUE(compared(batch(missing, 2), batch(missing, 2), Tolerance::same_bits()).same_bits);
  EXPECT_FALSE(compared(batch(missing, 2), batch(0, 2), Tolerance::same_bits()).agrees());
  EXPECT_FALSE(compared(batch(missing, 2), batch(2, missing), Tolerance::same_bits()).agrees());
}

TEST(Comparison, NamesTheFirstInTheOrderOfTheModelAndTheLargest) {
  const Comparison found = compared(two(1, 1), two(1.1, 1.5));
  EXPECT_EQ(found.first_difference, "gradients of step 1: b");
  EXPECT_EQ(found.largest_of, "gradients of step 1: a");
  EXPECT_NEAR(found.difference, 0.5, 1e-12);
}

TEST(Comparison, NoticesWhatIsNoNumber) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const Comparison found = compared(two(1, 2), two(1, bad));
    EXPECT_EQ(found.first_difference, "gradients of step 1: a");
    EXPECT_TRUE(std::isinf(found.of_tolerance));
  }
}

TEST(Comparison, NoticesNamesShapesAndTypes) {
  std::vector<NamedTensor> other = two(1, 2);
  other[0].name = "c";
  EXPECT_THAT(compared(two(1, 2), other).first_difference, HasSubstr("b is missing"));
  other = two(1, 2);
  other.push_back({"c", at::ones({1}, at::kDouble)});
  EXPECT_THAT(compared(two(1, 2), other).first_difference, HasSubstr("c is too much"));
  other = two(1, 2);
  other[1].tensor = other[1].tensor.view({2});
  EXPECT_THAT(compared(two(1, 2), other).first_difference, HasSubstr("a is [2]"));
  other = two(1, 2);
  other[1].tensor = other[1].tensor.to(at::kFloat);
  EXPECT_THAT(compared(two(1, 2), other).first_difference, HasSubstr("Float"));
}

TEST(Comparison, ComparesFiguresStepByStep) {
  RunComparison comparison;
  comparison.compare("loss", std::vector{2.0, 3.0}, std::vector{2.0, 3.0 + 1e-11}, Tolerance());
  EXPECT_EQ(comparison.result().first_difference, "loss of step 2");
  RunComparison shorter;
  shorter.compare("loss", std::vector{2.0, 3.0}, std::vector{2.0}, Tolerance());
  EXPECT_FALSE(shorter.result().agrees());
}

TEST(Comparison, RefusesRunsThatLeftNothing) {
  RunComparison comparison;
  EXPECT_THROW(
      comparison.compare_runs("/nowhere/a", "/nowhere/b", std::vector<std::int64_t>{1}, {}),
      DataError);
}

TEST(Comparison, OrdersParametersAsTheModelDoes) {
  Recipe recipe;
  recipe.model.as<GptOptions>().layers = 11;
  const std::vector<std::string> order = parameter_order(recipe);
  const auto index_of = [&](const std::string& name) {
    return std::ranges::find(order, name) - order.begin();
  };
  EXPECT_EQ(order.front(), "model.embed_tokens.weight");
  EXPECT_LT(index_of("model.layers.2.mlp.down_proj.weight"),
            index_of("model.layers.10.mlp.down_proj.weight"));
  EXPECT_LT(index_of("model.norm.weight"), std::ssize(order));
}

}  // namespace
}  // namespace troika
