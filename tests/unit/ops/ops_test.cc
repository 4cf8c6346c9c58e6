// Each fused operator against the plain formula, differentiated by autograd.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/ops/cross_entropy.h>
#include <troika/ops/dropout.h>
#include <troika/ops/embedding.h>
#include <troika/ops/norm.h>
#include <troika/ops/rotary.h>
#include <troika/ops/swiglu.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

namespace troika {
namespace {

at::Tensor values(at::IntArrayRef shape, std::string_view name) {
  const at::Tensor tensor = at::empty(shape, at::kDouble);
  const RandomStream stream(stream_key(7, name));
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.mutable_data_ptr<double>()[i] = stream.normal(static_cast<std::uint64_t>(i));
  }
  return tensor;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

double number(const at::Tensor& tensor) {
  return tensor.item<double>();
}

at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt(x.square().mean(-1, true) + eps) * weight;
}

TEST(RmsNorm, IsThePlainFormulaWithItsGradient) {
  // More rows than one chunk, a width that no vector divides.
  const at::Tensor x = values({131, 37}, "x").requires_grad_();
  const at::Tensor weight = values({37}, "w").requires_grad_();
  const at::Tensor dy = values({131, 37}, "dy");
  const at::Tensor expected = plain_rms_norm(x, weight, 1e-5);
  const auto gradients = torch::autograd::grad({expected}, {x, weight}, {dy});

  const auto result = ops::rms_norm(x.detach(), weight.detach(), 1e-5);
  const auto own = ops::rms_norm_backward(dy, x.detach(), weight.detach(), result.reciprocal);
  EXPECT_LT(distance(result.output, expected), 1e-13);
  EXPECT_LT(distance(own.input, gradients[0]), 1e-12);
  EXPECT_LT(distance(own.weight, gradients[1]), 1e-12);
}

TEST(RmsNorm, ComputesLowPrecisionInFloat) {
  const at::Tensor x = values({5, 64}, "x").to(at::kBFloat16);
  const at::Tensor weight = values({64}, "w").to(at::kFloat);
  const auto result = ops::rms_norm(x, weight, 1e-5);
  const at::Tensor expected = plain_rms_norm(x.to(at::kFloat), weight, 1e-5).to(at::kBFloat16);
  EXPECT_EQ(result.output.scalar_type(), at::kBFloat16);
  EXPECT_LT(distance(result.output, expected), 0.02);
}

TEST(SwiGlu, IsThePlainFormulaWithItsGradient) {
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{1}, {131, 37}, {0, 4}, {3, 20000}}) {
    const at::Tensor gate = (values(shape, "gate") * 4).requires_grad_();
    const at::Tensor up = values(shape, "up").requires_grad_(), dy = values(shape, "dy");
    const at::Tensor expected = gate * at::sigmoid(gate) * up;
    const auto gradients = torch::autograd::grad({expected}, {gate, up}, {dy});
    const at::Tensor g = gate.detach(), u = up.detach();
    const auto own = ops::swiglu_backward(dy, g, u);
    EXPECT_TRUE(ops::swiglu(g, u).allclose(expected, 1e-14, 1e-14));
    EXPECT_TRUE(own.gate.allclose(gradients[0], 1e-13, 1e-13));
    EXPECT_TRUE(own.up.allclose(gradients[1], 1e-14, 1e-14));
  }
}

TEST(SwiGlu, IsZeroOrLinearFarOut) {
  const at::Tensor gate = at::tensor({-0x1p100, -800.0, 0.0, 800.0, 0x1p100}, at::kDouble);
  const at::Tensor up = at::full({5}, 3, at::kDouble), dy = at::full({5}, 2, at::kDouble);
  const at::Tensor linear = at::tensor({0.0, 0.0, 0.0, 800.0, 0x1p100}, at::kDouble);
  EXPECT_TRUE(ops::swiglu(gate, up).equal(3 * linear));
  const auto own = ops::swiglu_backward(dy, gate, up);
  EXPECT_TRUE(own.gate.equal(at::tensor({0.0, 0.0, 3.0, 6.0, 6.0}, at::kDouble)));
  EXPECT_TRUE(own.up.equal(2 * linear));
  const at::Tensor nan = at::full({1}, NAN, at::kFloat), one = at::ones({1});
  EXPECT_TRUE(ops::swiglu(nan, one).isnan().all().item<bool>());
  EXPECT_TRUE(ops::swiglu_backward(one, nan, one).gate.isnan().all().item<bool>());
}

TEST(Rotary, TurnsByPositionTimesFrequencyAndBack) {
  constexpr std::int64_t kTokens = 6, kHeads = 3, kHalf = 4;
  const at::Tensor table = ops::rotary_table(10, 2 * kHalf, {10000.0}, at::kDouble);
  const at::Tensor x = values({kTokens, kHeads * 2 * kHalf}, "x");
  const at::Tensor positions = at::tensor({0, 1, 2, 0, 1, 9}, at::kLong);
  const at::Tensor turned = x.clone();
  ops::rotate_(turned, positions, table, ops::Rotation::kForward);

  const at::Tensor heads = x.view({kTokens, kHeads, 2, kHalf});
  const at::Tensor frequency = at::pow(10000.0, -at::arange(kHalf, at::kDouble) / kHalf);
  const at::Tensor angle = (positions.to(at::kDouble).unsqueeze(1) * frequency).unsqueeze(1);
  const at::Tensor first = heads.select(2, 0), second = heads.select(2, 1);
  const at::Tensor expected = at::stack(
      {first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()}, 2);
  EXPECT_LT(distance(turned.view({kTokens, kHeads, 2, kHalf}), expected), 1e-14);

  ops::rotate_(turned, positions, table, ops::Rotation::kBackward);
  EXPECT_LT(distance(turned, x), 1e-14);
}

// The frequencies of a table, from the angles of position 1.
at::Tensor frequencies(const ops::RotaryAngles& angles) {
  const at::Tensor table = ops::rotary_table(2, 16, angles, at::kDouble);
  return at::atan2(table[1][1], table[0][1]);
}

TEST(Rotary, ScalesFrequencies) {
  const at::Tensor plain = frequencies({.theta = 500});
  ops::RotaryAngles angles{.theta = 500, .scaling = ops::RotaryScaling::kLinear, .factor = 4};
  EXPECT_LT(distance(frequencies(angles), plain / 4), 1e-15);
  // The 20 tokens of before are 3.2, 1.5, 0.7, 0.3 ... turns.
  angles.scaling = ops::RotaryScaling::kLlama3;
  angles.low_freq_factor = 0.5;
  angles.high_freq_factor = 2;
  angles.original_len = 20;
  const at::Tensor found = frequencies(angles);
  for (std::int64_t i = 0; i < plain.numel(); ++i) {
    const double before = plain[i].item<double>(), wave = 2 * std::numbers::pi / before;
    double expected = before;
    if (wave > 20 / 0.5) {
      expected = before / 4;
    } else if (wave > 20 / 2.0) {
      const double smooth = (20 / wave - 0.5) / (2 - 0.5);
      expected = (1 - smooth) * before / 4 + smooth * before;
    }
    EXPECT_NEAR(found[i].item<double>(), expected, 1e-15) << i;
  }
  const at::Tensor ratio = found / plain;
  EXPECT_EQ(ratio[0].item<double>(), 1);
  EXPECT_GT(ratio[1].item<double>(), 0.25);
  EXPECT_LT(ratio[1].item<double>(), 1);
  EXPECT_NEAR(ratio[-1].item<double>(), 0.25, 1e-15);
}

TEST(CrossEntropy, IsTheSumWithItsGradientAndSkipsIgnoredRows) {
  const at::Tensor logits = (values({9, 11}, "logits") * 3).requires_grad_();
  const at::Tensor targets = at::tensor({0, 10, -100, 3, 4, -100, 5, 6, 7}, at::kLong);
  const at::Tensor expected = at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum, -100);
  const at::Tensor gradient = torch::autograd::grad({expected * 0.5}, {logits})[0];

  const at::Tensor own = logits.detach().clone();
  EXPECT_NEAR(number(ops::cross_entropy(own, targets)), number(expected), 1e-12);
  EXPECT_NEAR(number(ops::cross_entropy_with_gradient_(own, targets, 0.5)), number(expected),
              1e-12);
  EXPECT_LT(distance(own, gradient), 1e-14);
  EXPECT_EQ(own[2].abs().max().item<double>(), 0);
}

// Returns what logits of a type give, computed in fp64 by ATen.
struct ExactLoss {
  double sum;
  at::Tensor gradient;
};

ExactLoss exact_loss(const at::Tensor& logits, const at::Tensor& targets, double scale) {
  const at::Tensor exact = logits.to(at::kDouble).requires_grad_();
  const at::Tensor sum = at::cross_entropy_loss(exact, targets, {}, at::Reduction::Sum, -100);
  return {number(sum), torch::autograd::grad({sum * scale}, {exact})[0]};
}

class CrossEntropyTypes : public testing::TestWithParam<at::ScalarType> {
 protected:
  // Half a unit in the last place of a gradient up to 1, or the rounding of fp32 sums.
  static double tolerance() {
    if (GetParam() == at::kBFloat16) return 0.002;
    if (GetParam() == at::kHalf) return 0.0003;
    return GetParam() == at::kFloat ? 1e-6 : 1e-14;
  }
};

INSTANTIATE_TEST_SUITE_P(Types, CrossEntropyTypes,
                         testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& type) { return c10::toString(type.param); });

// Numbers of classes below, at and above those of lanes and blocks, and rows of one.
TEST_P(CrossEntropyTypes, AreExactForAnyNumberOfRowsAndClasses) {
  for (const std::int64_t rows : {1, 5}) {
    for (const std::int64_t classes : {1, 2, 63, 64, 65, 1024, 1025, 2500, 50257}) {
      const at::Tensor logits = (values({rows, classes}, "logits") * 4).to(GetParam());
      const at::Tensor targets = at::arange(rows, at::kLong).mul(classes / rows);
      if (rows > 1) targets[3] = -100;
      const ExactLoss exact = exact_loss(logits, targets, 0.5);
      EXPECT_NEAR(number(ops::cross_entropy(logits, targets)), exact.sum,
                  1e-6 * std::max(1.0, exact.sum))
          << classes;
      const at::Tensor own = logits.clone();
      EXPECT_EQ(number(ops::cross_entropy_with_gradient_(own, targets, 0.5)),
                number(ops::cross_entropy(logits, targets)))
          << classes;
      EXPECT_EQ(own.scalar_type(), GetParam());
      EXPECT_LT(distance(own, exact.gradient), tolerance()) << classes;
    }
  }
}

TEST_P(CrossEntropyTypes, AreZeroWhereAllRowsAreIgnored) {
  const at::Tensor logits = values({3, 70}, "logits").to(GetParam());
  const at::Tensor targets = at::full({3}, -100, at::kLong);
  EXPECT_EQ(number(ops::cross_entropy(logits, targets)), 0);
  EXPECT_EQ(number(ops::cross_entropy_with_gradient_(logits, targets, 2)), 0);
  EXPECT_EQ(distance(logits, at::zeros({3, 70})), 0);
}

// A class of logit -inf is ruled out; a row with NaN or +inf has no softmax, nor one of -inf alone.
TEST_P(CrossEntropyTypes, HandOnWhatIsNotFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  const at::Tensor targets = at::full({5}, 1, at::kLong);
  const at::Tensor logits = values({5, 100}, "logits").to(GetParam());
  logits[0][99] = std::numeric_limits<double>::quiet_NaN();
  logits[1][2] = inf;
  logits[2].fill_(-inf);
  logits[3].narrow(0, 2, 98).fill_(-inf);
  const ExactLoss exact = exact_loss(logits.narrow(0, 3, 2), targets.narrow(0, 0, 2), 1);
  for (const std::int64_t row : {0, 1, 2}) {
    EXPECT_TRUE(
        std::isnan(number(ops::cross_entropy(logits.narrow(0, row, 1), targets.narrow(0, 0, 1)))))
        << row;
  }
  EXPECT_NEAR(number(ops::cross_entropy(logits.narrow(0, 3, 2), targets.narrow(0, 0, 2))),
              exact.sum, 1e-5);
  EXPECT_TRUE(std::isnan(number(ops::cross_entropy_with_gradient_(logits, targets, 1))));
  EXPECT_TRUE(logits.narrow(0, 0, 3).isnan().all().item<bool>());
  EXPECT_LT(distance(logits.narrow(0, 3, 2), exact.gradient), tolerance());
}

TEST_P(CrossEntropyTypes, AreTheSameWithAnyNumberOfThreads) {
  const at::Tensor logits = (values({67, 1500}, "logits") * 4).to(GetParam());
  const at::Tensor targets = at::arange(67, at::kLong);
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> gradients, sums;
  for (const int count : {1, 3}) {
    at::set_num_threads(count);
    gradients.push_back(logits.clone());
    sums.push_back(ops::cross_entropy_with_gradient_(gradients.back(), targets, 0.5));
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(gradients[1].equal(gradients[0]));
  EXPECT_TRUE(sums[1].equal(sums[0]));
}

// The numbers of classes [borders[i], borders[i + 1]) of each part, and their gradients.
struct SplitLoss {
  double sum;
  at::Tensor gradient;
};

SplitLoss split_loss(const at::Tensor& logits, const at::Tensor& targets,
                     const std::vector<std::int64_t>& borders, double scale) {
  std::vector<at::Tensor> gradients, numbers;
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    gradients.push_back(logits.narrow(1, borders[i], borders[i + 1] - borders[i]).clone());
    numbers.push_back(ops::cross_entropy_slice(gradients[i], targets, borders[i]));
  }
  const at::Tensor slices = at::stack(numbers);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    ops::cross_entropy_gradient_of_slice_(gradients[i], targets, borders[i], slices, scale);
  }
  return {number(ops::cross_entropy_of_slices(slices, targets)), at::cat(gradients, 1)};
}

TEST(SplitCrossEntropy, IsThatOfAllClassesWhateverTheSlices) {
  const at::Tensor targets = at::tensor({0, 250, -100, 83, 84, -100, 167, 100, 7}, at::kLong);
  for (const double spread : {1.0, 50.0, 1e4}) {
    const at::Tensor logits = values({9, 251}, "logits") * spread;
    at::Tensor gradient = logits.clone();
    const double expected = number(ops::cross_entropy_with_gradient_(gradient, targets, 0.5));
    for (const std::vector<std::int64_t>& borders :
         {std::vector<std::int64_t>{0, 251}, {0, 84, 168, 251}, {0, 84, 84, 251, 251}}) {
      const SplitLoss split = split_loss(logits, targets, borders, 0.5);
      EXPECT_NEAR(split.sum / expected, 1, 1e-14) << spread;
      EXPECT_LT(distance(split.gradient, gradient), 1e-14) << spread;
      EXPECT_EQ(split.gradient[2].abs().max().item<double>(), 0);
    }
  }
}

TEST(SplitCrossEntropy, InFloatLosesNoMoreThanTheWhole) {
  const at::Tensor exact = values({4, 1000}, "logits") * 20;
  const at::Tensor targets = at::tensor({0, 999, 500, 3}, at::kLong);
  const SplitLoss split = split_loss(exact.to(at::kFloat), targets, {0, 334, 667, 1000}, 1);
  EXPECT_NEAR(split.sum / number(ops::cross_entropy(exact.clone(), targets)), 1, 1e-6);
  at::Tensor gradient = exact.clone();
  static_cast<void>(ops::cross_entropy_with_gradient_(gradient, targets, 1));
  EXPECT_LT(distance(split.gradient, gradient), 2e-6);
}

TEST(SplitCrossEntropy, HandsOnWhatIsNotFinite) {
  at::Tensor logits = values({2, 10}, "logits");
  logits[0][7] = std::numeric_limits<double>::quiet_NaN();
  const SplitLoss split = split_loss(logits, at::tensor({1, 1}, at::kLong), {0, 5, 10}, 1);
  EXPECT_TRUE(std::isnan(split.sum));
  EXPECT_TRUE(split.gradient[0].isnan().all().item<bool>());
  EXPECT_FALSE(split.gradient[1].isnan().any().item<bool>());
}

TEST_P(CrossEntropyTypes, OfSlicesAreThoseOfTheWhole) {
  const at::Tensor logits = (values({9, 251}, "logits") * 4).to(GetParam());
  const at::Tensor targets = at::tensor({0, 250, -100, 83, 84, -100, 167, 100, 7}, at::kLong);
  const ExactLoss exact = exact_loss(logits, targets, 0.5);
  const SplitLoss split = split_loss(logits, targets, {0, 84, 84, 251}, 0.5);
  EXPECT_NEAR(split.sum / exact.sum, 1, 1e-6);
  EXPECT_LT(distance(split.gradient, exact.gradient), tolerance());
}

TEST(SplitCrossEntropy, LeavesOutASliceOfClassesThatAreRuledOut) {
  const at::Tensor logits = values({2, 10}, "logits");
  logits.narrow(1, 5, 5).fill_(-std::numeric_limits<double>::infinity());
  const at::Tensor targets = at::tensor({1, 4}, at::kLong);
  const SplitLoss split = split_loss(logits, targets, {0, 5, 10}, 1);
  at::Tensor gradient = logits.clone();
  EXPECT_NEAR(split.sum, number(ops::cross_entropy_with_gradient_(gradient, targets, 1)), 1e-14);
  EXPECT_LT(distance(split.gradient, gradient), 1e-15);
}

// Every operator reaches elements by address: strides of an argument may not change what it gives.
TEST(Strides, OfInputsDoNotMatter) {
  const at::Tensor x = values({6, 8}, "x"), weight = values({8}, "weight");
  const at::Tensor turned = x.t().contiguous().t(), spread = weight.expand({2, 8}).t().select(1, 1);
  const auto norm = ops::rms_norm(x, weight, 1e-5), other = ops::rms_norm(turned, spread, 1e-5);
  EXPECT_TRUE(other.output.equal(norm.output));
  const auto back = ops::rms_norm_backward(x, x, weight, norm.reciprocal);
  const auto same = ops::rms_norm_backward(turned, turned, spread, norm.reciprocal);
  EXPECT_TRUE(same.input.equal(back.input));
  EXPECT_TRUE(same.weight.equal(back.weight));

  EXPECT_TRUE(ops::swiglu(turned, x).equal(ops::swiglu(x, x)));
  EXPECT_TRUE(ops::swiglu_backward(x, x, turned).gate.equal(ops::swiglu_backward(x, x, x).gate));

  const at::Tensor ones = at::ones({1}, at::kLong).expand({6}), dense = at::ones({6}, at::kLong);
  const at::Tensor table = ops::rotary_table(4, 4, {100}, at::kDouble);
  const at::Tensor a = x.clone(), b = x.clone();
  ops::rotate_(a, dense, table, ops::Rotation::kForward);
  ops::rotate_(b, ones, table.transpose(1, 2).contiguous().transpose(1, 2),
               ops::Rotation::kForward);
  EXPECT_TRUE(b.equal(a));

  EXPECT_EQ(number(ops::cross_entropy(turned, ones)), number(ops::cross_entropy(x, dense)));
  EXPECT_EQ(number(ops::cross_entropy_with_gradient_(b, ones, 2)),
            number(ops::cross_entropy_with_gradient_(a, dense, 2)));
  EXPECT_TRUE(b.equal(a));
  const at::Tensor slices = at::stack({ops::cross_entropy_slice(a, dense, 0)});
  EXPECT_TRUE(at::stack({ops::cross_entropy_slice(b, ones, 0)}).equal(slices));
  const at::Tensor apart = slices.transpose(1, 2).contiguous().transpose(1, 2);
  EXPECT_EQ(number(ops::cross_entropy_of_slices(apart, ones)),
            number(ops::cross_entropy_of_slices(slices, dense)));
  ops::cross_entropy_gradient_of_slice_(a, dense, 0, slices, 1);
  ops::cross_entropy_gradient_of_slice_(b, ones, 0, apart, 1);
  EXPECT_TRUE(b.equal(a));

  ops::add_rows_(a, dense, x);
  ops::add_rows_(b, ones, turned);
  EXPECT_TRUE(b.equal(a));
  const ops::DropoutKey key{stream_key(1, "place"), 3};
  EXPECT_TRUE(ops::dropout(turned, ones, 0.5, key).equal(ops::dropout(x, dense, 0.5, key)));
}

TEST(Strides, OfWhatIsOverwrittenAreChecked) {
  const at::Tensor view = values({8, 6}, "x").t(), places = at::ones({6}, at::kLong);
  const at::Tensor table = ops::rotary_table(4, 4, {100}, at::kDouble);
  EXPECT_THROW(ops::rotate_(view, places, table, ops::Rotation::kForward), InternalError);
  EXPECT_THROW(ops::add_rows_(view, places, view), InternalError);
  EXPECT_THROW((void)ops::cross_entropy_with_gradient_(view, places, 1), InternalError);
  const at::Tensor slices = at::ones({1, 6, 3}, at::kDouble);
  EXPECT_THROW(ops::cross_entropy_gradient_of_slice_(view, places, 0, slices, 1), InternalError);
}

TEST(AddRows, AddsRepeatedRowsInOrder) {
  const at::Tensor table = at::zeros({4, 130}, at::kDouble);
  const at::Tensor indices = at::tensor({1, 3, 1, 1}, at::kLong);
  const at::Tensor rows = values({4, 130}, "rows");
  ops::add_rows_(table, indices, rows);
  EXPECT_EQ(distance(table[1], rows[0] + rows[2] + rows[3]), 0);
  EXPECT_EQ(distance(table[3], rows[1]), 0);
  EXPECT_EQ(table[0].abs().max().item<double>(), 0);
}

TEST(Dropout, KeepsTheExpectationAndRepeats) {
  const at::Tensor x = at::ones({8, 10000}, at::kDouble);
  const at::Tensor ids = at::arange(8, at::kLong);
  const ops::DropoutKey key{stream_key(1, "place"), 3};
  const at::Tensor y = ops::dropout(x, ids, 0.25, key);
  EXPECT_NEAR(y.mean().item<double>(), 1.0, 0.01);
  EXPECT_NEAR(y.eq(0).to(at::kDouble).mean().item<double>(), 0.25, 0.01);
  EXPECT_EQ(distance(y, ops::dropout(x, ids, 0.25, key)), 0);
  EXPECT_GT(distance(y, ops::dropout(x, ids, 0.25, {key.stream, 4})), 0);
}

TEST(Dropout, OfASliceIsTheSliceOfAll) {
  constexpr std::int64_t kSamples = 3, kLength = 37, kDim = 7;  // no block of four ends with a row
  const at::Tensor x = values({kSamples * kLength, kDim}, "x");
  const at::Tensor ids = at::tensor({5, 9, 2}, at::kLong);
  const ops::DropoutKey key{stream_key(1, "place"), 3};
  const at::Tensor all = ops::dropout(x, ids, 0.3, key);
  for (const auto& [first, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, 111}, {0, 56}, {56, 55}, {36, 2}, {37, 37}, {110, 1}, {50, 0}, {111, 0}}) {
    const at::Tensor slice =
        ops::dropout_rows(x.narrow(0, first, count), {first, kLength}, ids, 0.3, key);
    EXPECT_TRUE(slice.equal(all.narrow(0, first, count))) << first;
  }
}

TEST(Dropout, DependsOnTheSampleAndNotOnItsMicrobatch) {
  const at::Tensor x = at::ones({4, 37}, at::kDouble);
  const ops::DropoutKey key{stream_key(1, "place"), 3};
  const at::Tensor together = ops::dropout(x, at::tensor({5, 6, 7, 8}, at::kLong), 0.5, key);
  const at::Tensor alone = ops::dropout(x.narrow(0, 0, 1), at::tensor({7}, at::kLong), 0.5, key);
  EXPECT_EQ(distance(together[2], alone[0]), 0);
  EXPECT_EQ(ops::dropout(x, at::arange(4, at::kLong), 0, key).data_ptr(), x.data_ptr());
}

}  // namespace
}  // namespace troika
