// Each loss against its formula, and its own gradient against autograd's, in fp64.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <troika/base/error.h>
#include <troika/loss/loss.h>

#include <cmath>
#include <limits>

namespace troika {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

LossOptions with_keys(const LossKind& kind,
                      const std::vector<std::pair<std::string, std::vector<double>>>& lists,
                      double smoothing = 0) {
  LossOptions loss(kind);
  for (const Key& key : kind.keys()) {
    if (const auto* list = std::get_if<NumberListSpec>(&key.spec)) {
      for (const auto& [name, values] : lists) {
        if (name == key.name) list->at.edit(loss.options().data()) = values;
      }
    } else if (const auto* number = std::get_if<NumberSpec>(&key.spec)) {
      number->at.edit(loss.options().data()) = smoothing;
    }
  }
  return loss;
}

at::Tensor outputs() {
  return at::tensor({0.5, -1.0, 2.0, 0.1, 0.3, -0.7, -2.0, 0.0, 1.5, 0.2, 0.2, 0.2}, at::kDouble)
      .view({4, 3});
}

at::Tensor classes() {
  return at::tensor({2, 0, -100, 1}, at::kLong);
}

// One sample misses an answer.
at::Tensor answers() {
  return at::tensor({1.0, 0.0, 1.0, 0.0, kNaN, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0}, at::kDouble)
      .view({4, 3});
}

at::Tensor weights() {
  return at::tensor({2.0, 0.0, 0.5, 3.0}, at::kDouble);
}

std::string refusal(const LossKind& kind, const LossTargets& targets) {
  try {
    (void)kind.make(kind.defaults())->of(outputs(), targets);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

void expect_own_gradient_is_autograds(const LossOptions& loss, const LossTargets& targets) {
  const auto function = loss.kind().make(loss.options());
  at::Tensor leaf = outputs().requires_grad_(true);
  const LossTerms terms = function->of(leaf, targets);
  const auto expected =
      torch::autograd::grad({terms.sum}, {leaf}, {at::scalar_tensor(0.25, at::kDouble)});
  const at::NoGradGuard no_autograd;
  const at::Tensor own = outputs();
  const LossTerms same = function->with_gradient_(own, targets, 0.25);
  EXPECT_NEAR(same.read_sum(), terms.read_sum(), 1e-14) << loss.name();
  EXPECT_EQ(same.weight.defined(), terms.weight.defined());
  EXPECT_EQ(same.read_weight(), terms.read_weight());
  EXPECT_LE((own - expected[0]).abs().max().item<double>(), 1e-15) << loss.name();
}

TEST(Losses, OwnGradientsAreThoseOfAutograd) {
  expect_own_gradient_is_autograds(LossOptions(cross_entropy_kind()), classes());
  const std::vector<double> weights = {0.5, 2, 3};
  for (const double smoothing : {0.0, 0.2}) {
    expect_own_gradient_is_autograds(
        with_keys(cross_entropy_kind(), {{"class_weights", weights}}, smoothing), classes());
  }
  expect_own_gradient_is_autograds(with_keys(cross_entropy_kind(), {}, 0.2), classes());
  expect_own_gradient_is_autograds(LossOptions(binary_cross_entropy_kind()), answers());
  expect_own_gradient_is_autograds(
      with_keys(binary_cross_entropy_kind(), {{"positive_weights", weights}}), answers());
  expect_own_gradient_is_autograds(LossOptions(mean_square_kind()), answers());
}

TEST(Losses, OwnGradientsOfWeighedSamplesAreThoseOfAutograd) {
  const std::vector<double> of_classes = {0.5, 2, 3};
  expect_own_gradient_is_autograds(LossOptions(cross_entropy_kind()), {classes(), weights()});
  expect_own_gradient_is_autograds(
      with_keys(cross_entropy_kind(), {{"class_weights", of_classes}}, 0.2),
      {classes(), weights()});
  expect_own_gradient_is_autograds(LossOptions(binary_cross_entropy_kind()),
                                   {answers(), weights()});
  expect_own_gradient_is_autograds(LossOptions(mean_square_kind()), {answers(), weights()});
}

// A sample that weighs 2 is one that is there twice, and one that weighs 0 is none.
TEST(Losses, AWeightStandsForSoManySamples) {
  const at::Tensor counts = at::tensor({2, 0, 1, 3}, at::kLong);
  const at::Tensor repeated = at::repeat_interleave(counts);
  const auto expect_same = [&](const LossOptions& loss, const at::Tensor& targets) {
    const auto function = loss.kind().make(loss.options());
    LossTerms expected =
        function->of(outputs().index_select(0, repeated), targets.index_select(0, repeated));
    expected.weigh_equally(5);  // the targets that count of the six that `repeated` has
    const LossTerms found = function->of(outputs(), {targets, counts.to(at::kDouble)});
    EXPECT_NEAR(found.read_sum(), expected.read_sum(), 1e-13) << loss.name();
    EXPECT_NEAR(found.read_weight(), expected.read_weight(), 1e-13) << loss.name();
  };
  expect_same(LossOptions(cross_entropy_kind()), classes());
  expect_same(with_keys(cross_entropy_kind(), {{"class_weights", {0.5, 2, 3}}}, 0.3), classes());
  expect_same(LossOptions(binary_cross_entropy_kind()), answers());
  expect_same(LossOptions(mean_square_kind()), answers());
}

TEST(Losses, NameTheSampleWhoseTargetCannotBe) {
  const at::Tensor ids = at::tensor({10, 11, 12, 13}, at::kLong);
  const LossKind& classes = cross_entropy_kind();
  EXPECT_EQ(refusal(classes, {at::tensor({0, 1, 3, 2}, at::kLong), {}, ids}),
            "the target of sample 12 is 3; the model has classes 0 to 2");
  EXPECT_EQ(refusal(classes, {at::tensor({0, -1, 3, 2}, at::kLong), {}, ids}),
            "the target of sample 11 is -1; the model has classes 0 to 2");
  EXPECT_EQ(refusal(classes, at::tensor({0, 1, 2, 7}, at::kLong)),
            "the target of sample 3 of a microbatch is 7; the model has classes 0 to 2");
  at::Tensor values = at::zeros({4, 3}, at::kFloat);
  values[2][1] = 1.5;
  EXPECT_EQ(refusal(binary_cross_entropy_kind(), {values, {}, ids}),
            "the target of sample 12 is 1.5; an answer is between 0 and 1");
  EXPECT_EQ(refusal(mean_square_kind(), {values, {}, ids}), "");
  values[3][0] = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(refusal(mean_square_kind(), {values, {}, ids}),
            "the target of sample 13 is -inf; expected a number");
  EXPECT_EQ(refusal(mean_square_kind(), {answers(), at::tensor({1.0, -2.0, 1.0, 1.0}), ids}),
            "the weight of sample 11 is -2; a sample weighs 0 or more");
  EXPECT_EQ(refusal(mean_square_kind(), {answers(), at::tensor({1.0, 1.0, kNaN, 1.0}), ids}),
            "the weight of sample 12 is nan; a sample weighs 0 or more");
}

// The first of a microbatch as well.
TEST(Losses, NameTheFirstSample) {
  const at::Tensor ids = at::tensor({10, 11, 12, 13}, at::kLong);
  EXPECT_EQ(refusal(cross_entropy_kind(), {at::tensor({3, 1, 0, 2}, at::kLong), {}, ids}),
            "the target of sample 10 is 3; the model has classes 0 to 2");
  at::Tensor values = at::zeros({4, 3}, at::kDouble);
  values[0][0] = -0.5;
  EXPECT_EQ(refusal(binary_cross_entropy_kind(), {values, {}, ids}),
            "the target of sample 10 is -0.5; an answer is between 0 and 1");
  values[0][0] = std::numeric_limits<double>::infinity();
  EXPECT_EQ(refusal(mean_square_kind(), {values, {}, ids}),
            "the target of sample 10 is inf; expected a number");
  EXPECT_EQ(refusal(mean_square_kind(), {answers(), at::tensor({-1.0, 2.0, 1.0, 1.0}), ids}),
            "the weight of sample 10 is -1; a sample weighs 0 or more");
}

// By its role a loss's tensor is kept out of the model's inputs.
TEST(Losses, AskForATargetInItsRole) {
  for (const LossKind* const kind : LossKind::all()) {
    const TensorSpec spec = kind->targets(3, kind->name());
    EXPECT_EQ(spec.role, TensorRole::kTarget) << kind->name();
    EXPECT_EQ(spec.dtype == at::kLong, kind->target_meaning() == TargetMeaning::kClass)
        << kind->name();
  }
}

// -(1 - s) w_y log p_y - s / C sum w_c log p_c, and the weights of the targets that count.
TEST(Losses, CrossEntropySmoothsAndWeighs) {
  const std::vector<double> weights = {0.5, 2, 3};
  const LossOptions loss = with_keys(cross_entropy_kind(), {{"class_weights", weights}}, 0.3);
  const LossTerms terms = loss.kind().make(loss.options())->of(outputs(), classes());
  const at::Tensor logs = at::log_softmax(outputs(), 1);
  double sum = 0;
  for (const auto& [sample, target] : {std::pair(0, 2), std::pair(1, 0), std::pair(3, 1)}) {
    sum -= 0.7 * weights[static_cast<std::size_t>(target)] * logs[sample][target].item<double>();
    for (int c = 0; c < 3; ++c) {
      sum -= 0.1 * weights[static_cast<std::size_t>(c)] * logs[sample][c].item<double>();
    }
  }
  EXPECT_NEAR(terms.read_sum(), sum, 1e-14);
  EXPECT_EQ(terms.read_weight(), 3 + 0.5 + 2);
}

TEST(Losses, MissingAnswersCountNowhere) {
  for (const LossKind* kind : {&binary_cross_entropy_kind(), &mean_square_kind()}) {
    const auto loss = kind->make(kind->defaults());
    const LossTerms terms = loss->of(outputs(), answers());
    EXPECT_DOUBLE_EQ(terms.read_weight(), 11.0 / 3) << kind->name();
    double sum = 0;
    for (int i = 0; i < 12; ++i) {
      const double z = outputs().view({-1})[i].item<double>();
      const double y = answers().view({-1})[i].item<double>();
      if (std::isnan(y)) continue;
      const double s = 1 / (1 + std::exp(-z));
      sum += kind == &mean_square_kind() ? (z - y) * (z - y)
                                         : -y * std::log(s) - (1 - y) * std::log(1 - s);
    }
    EXPECT_NEAR(terms.read_sum(), sum / 3, 1e-14) << kind->name();
  }
}

// A sample's loss is the mean over all of its numbers, in any shape.
TEST(Losses, TakeTargetsOfAnyShape) {
  for (const LossKind* kind : {&mean_square_kind(), &binary_cross_entropy_kind()}) {
    const auto loss = kind->make(kind->defaults());
    const at::Tensor given = outputs().view({2, 6}), expected = answers().view({2, 6});
    const LossTerms flat = loss->of(given, expected);
    const LossTerms deep = loss->of(given.view({2, 1, 3, 2}), expected.view({2, 1, 3, 2}));
    EXPECT_TRUE(at::equal(deep.sum, flat.sum));
    EXPECT_TRUE(at::equal(deep.weight, flat.weight));
    const LossTerms numbers = loss->of(given.flatten(), expected.flatten());
    const LossTerms columns = loss->of(given.view({12, 1}), expected.view({12, 1}));
    EXPECT_TRUE(at::equal(numbers.sum, columns.sum));
    EXPECT_THROW((void)loss->of(given.flatten(), expected.view({12, 1})), UsageError);
  }
}

TEST(Losses, NarrowOutputsAreSummedInFloat) {
  const auto loss = cross_entropy_kind().make(cross_entropy_kind().defaults());
  const at::Tensor narrow = outputs().to(at::kBFloat16);
  EXPECT_NEAR(loss->of(narrow, classes()).read_sum(),
              loss->of(narrow.to(at::kFloat), classes()).read_sum(), 1e-6);
}

TEST(Losses, WeightsMustFitTheOutputs) {
  const LossOptions loss = with_keys(cross_entropy_kind(), {{"class_weights", {1, 2}}});
  EXPECT_NO_THROW(loss.kind().check_outputs(loss.options(), 2, Origins()));
  EXPECT_THROW(loss.kind().check_outputs(loss.options(), 3, Origins()), UsageError);
  const LossOptions answers =
      with_keys(binary_cross_entropy_kind(), {{"positive_weights", {1, 2}}});
  EXPECT_NO_THROW(answers.kind().check_outputs(answers.options(), 2, Origins()));
  try {
    answers.kind().check_outputs(answers.options(), 1, Origins());
    ADD_FAILURE() << "two weights for one output";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("positive_weights has 2 numbers, and the model gives 1"));
  }
}

}  // namespace
}  // namespace troika
