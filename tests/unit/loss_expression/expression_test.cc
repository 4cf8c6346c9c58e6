// Expressions against the formulas that they stand for, in fp64, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/loss/expression.h>

#include <limits>
#include <string>

namespace troika {
namespace {

using ::testing::HasSubstr;

// y = x0^3 x1, so that all derivatives are known.
ExpressionOptions of_a_cubic() {
  ExpressionOptions options;
  options.targets = {{"t", {}}};
  options.quantities = {{"u", "y[:, 0]", {}},
                        {"slope", "derivative(u, x)", {2}},
                        {"bend", "derivative(slope[:, 0], x)[:, 0]", {}},
                        {"none", "derivative(bend * 0.0 + 3.0, z)", {1}}};
  options.value = "squared_error(bend, t) + slope[:, 1]";
  return options;
}

struct Cubic {
  at::Tensor x = torch::randn({5, 2}, torch::kDouble).requires_grad_(true);
  at::Tensor z = torch::zeros({5, 1}, torch::kDouble).requires_grad_(true);
  at::Tensor scale = torch::ones({}, torch::kDouble).requires_grad_(true);  // a parameter
  at::Tensor y = (scale * x.select(1, 0).pow(3) * x.select(1, 1)).unsqueeze(1);
};

at::Tensor column(const at::Tensor& tensor, std::int64_t index) {
  return tensor.detach().select(1, index);
}

bool is_same(const at::Tensor& one, const at::Tensor& other) {
  return at::allclose(one, other, 1e-14, 1e-14);
}

std::string refusal(const ExpressionOptions& options) {
  try {
    const Expressions expressions(options, {"x", "z"}, {"y"}, {"t"});
    const Cubic cubic;
    TensorMap known = {{"x", cubic.x}, {"z", cubic.z}, {"y", cubic.y}, {"t", at::zeros({5})}};
    const Tensors values = expressions.quantities({cubic.x, cubic.z}, {cubic.y});
    for (std::size_t i = 0; i < values.size(); ++i) {
      known.add(options.quantities[i].name, values[i]);
    }
    (void)expressions.loss(known);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Expressions, AreTheirDerivatives) {
  const Expressions expressions(of_a_cubic(), {"x", "z"}, {"y"}, {"t"});
  const Cubic cubic;
  const Tensors values = expressions.quantities({cubic.x, cubic.z}, {cubic.y});
  ASSERT_EQ(values.size(), 4U);
  const at::Tensor a = column(cubic.x, 0), b = column(cubic.x, 1);
  EXPECT_TRUE(is_same(values[0], a.pow(3) * b));
  EXPECT_TRUE(is_same(values[1], at::stack({3 * a.pow(2) * b, a.pow(3)}, 1)));
  EXPECT_TRUE(is_same(values[2], 6 * a * b));
  EXPECT_TRUE(is_same(values[3], at::zeros({5, 1}, at::kDouble)));  // it does not depend on z
}

// d/ds sum((6 s a b - t)^2 + s a^3) at s = 1. A target that is no number leaves its term out.
TEST(Expressions, HaveGradientsByParameters) {
  const Expressions expressions(of_a_cubic(), {"x", "z"}, {"y"}, {"t"});
  const Cubic cubic;
  at::Tensor t = torch::randn({5}, torch::kDouble);
  t[2] = std::numeric_limits<double>::quiet_NaN();
  const Tensors values = expressions.quantities({cubic.x, cubic.z}, {cubic.y});
  const at::Tensor loss = expressions.loss({{"x", cubic.x},
                                            {"z", cubic.z},
                                            {"y", cubic.y},
                                            {"t", t},
                                            {"u", values[0]},
                                            {"slope", values[1]},
                                            {"bend", values[2]},
                                            {"none", values[3]}});
  const at::Tensor a = column(cubic.x, 0), b = column(cubic.x, 1), error = 6 * a * b - t;
  const at::Tensor there = error.eq(error);
  EXPECT_TRUE(is_same(loss, error.nan_to_num().square() + a.pow(3)));
  const Tensors found = torch::autograd::grad({loss.sum()}, {cubic.scale});
  const at::Tensor expected = (2 * error.nan_to_num() * 6 * a * b * there + a.pow(3)).sum();
  EXPECT_TRUE(is_same(found[0], expected));
}

TEST(Expressions, NameWhatIsWrong) {
  EXPECT_EQ(refusal(of_a_cubic()), "");
  const auto with = [](std::size_t quantity, const std::string& value) {
    ExpressionOptions options = of_a_cubic();
    options.quantities[quantity].value = value;
    return refusal(options);
  };
  EXPECT_THAT(with(0, "y[:, 0"), HasSubstr("quantities.u.value: expected ]"));
  EXPECT_THAT(with(0, "bend"), HasSubstr("quantities.u.value: undefined value bend in 'bend'"));
  EXPECT_THAT(with(1, "derivative(u, x[:, 0])"), HasSubstr("slope.value: derivative() is by an"));
  EXPECT_THAT(with(1, "derivative(u, y)"), HasSubstr("slope.value: derivative() is by an input"));
  EXPECT_THAT(with(1, "derivative(x, x)"), HasSubstr("derivative() is of one number a sample"));
  EXPECT_THAT(with(2, "slope"), HasSubstr("quantities.bend.value gives [5, 2] for 5 samples"));
  EXPECT_THAT(with(0, "y.view(3)"), HasSubstr("quantities.u.value: shape '[3]' is invalid"));
  EXPECT_THAT(with(0, "(y, y)"), HasSubstr("quantities.u.value: '(y, y)' gives no tensor"));
  ExpressionOptions options = of_a_cubic();
  options.value = "squared_error(slope, t)";
  EXPECT_THAT(refusal(options), HasSubstr("value: squared_error() takes two tensors of one shape"));
  options.value = "u.mean()";
  EXPECT_EQ(refusal(options), "value gives [] for 5 samples, not one number for each");
  options = of_a_cubic();
  options.quantities[0].name = "x";
  EXPECT_EQ(refusal(options), "two tensors are called 'x' in the expressions");
  for (const std::string name : {"lambda", "derivative", "2u", "u.v", "", "torch"}) {
    options.quantities[0].name = name;
    EXPECT_THAT(refusal(options), HasSubstr("is no name that an expression can use")) << name;
  }
}

}  // namespace
}  // namespace troika
