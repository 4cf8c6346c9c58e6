// A model trained on arrays that are spread over ranks, against the same on one rank.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/capi/array_model.h>

#include "rank_helper.h"

namespace troika::test {
namespace {

constexpr std::string_view kRecipe = R"(
[model]
kind = "mlp"
input_dim = 3
hidden_dims = [16, 16]
output_dim = 2
activation = "tanh"
loss = "mean_square"
[train]
steps = 20
precision = "fp64"
grad_clip = 0.5
[optimizer]
kind = "sgd"
lr = 0.1
momentum = 0.9
warmup_steps = 3
)";
constexpr std::int64_t kArraySamples = 23;  // of all ranks

struct Arrays {
  at::Tensor inputs, targets;
};

Arrays batch_of(std::int64_t step) {
  const at::Tensor inputs = at::arange(kArraySamples * 3, at::kDouble)
                                .add_(static_cast<double>(step))
                                .sin_()
                                .view({-1, 3});
  return {inputs, at::stack({inputs.prod(1), inputs.sum(1)}, 1)};
}

// Uneven shares: rank 0 has most, and the last rank none in every third step.
Arrays own_samples(const Arrays& all, const Rank& rank, std::int64_t step) {
  const std::int64_t each = 3;
  const bool idle = rank.size() > 1 && rank.index() == rank.size() - 1 && step % 3 == 0;
  const std::int64_t others = each * (rank.size() - 1 - (step % 3 == 0 && rank.size() > 1 ? 1 : 0));
  const std::int64_t first = kArraySamples - others;
  const std::int64_t begin = rank.index() == 0 ? 0 : first + each * (rank.index() - 1);
  const std::int64_t count = rank.index() == 0 ? first : (idle ? 0 : each);
  return {all.inputs.narrow(0, std::min(begin, kArraySamples), count),
          all.targets.narrow(0, std::min(begin, kArraySamples), count)};
}

RANK_TEST(ArrayModel, TrainsAsOneRankDoes, 1, 2, 3) {
  const Recipe recipe = parse_array_recipe(kRecipe, "recipe");
  ArrayModel model(Session::on(rank.group()), recipe);
  ArrayModel alone(Session::on(Group()), recipe);
  for (std::int64_t step = 0; step < 20; ++step) {
    const Arrays all = batch_of(step);
    const Arrays own = own_samples(all, rank, step);
    const double loss = model.step(own.inputs, own.targets);
    const double expected = alone.step(all.inputs, all.targets);
    EXPECT_NEAR(loss, expected, 1e-12 * expected) << step;
  }
  const Arrays all = batch_of(99);
  EXPECT_TRUE(at::allclose(model.predict(all.inputs), alone.predict(all.inputs), 1e-10, 1e-12));
}

RANK_TEST(ArrayModel, OfAnotherRecipeIsRefusedEverywhere, 2) {
  Recipe recipe = parse_array_recipe(kRecipe, "recipe");
  recipe.seed += rank.index();
  EXPECT_THROW(ArrayModel(Session::on(rank.group()), recipe), UsageError);
}

// The error that `act` gives.
template <class Act>
std::string told_by(const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage) << error.what();
    return error.what();
  }
  return "no error";
}

RANK_TEST(ArrayModel, ARecipeThatOneRankCannotReadIsToldEverywhere, 3) {
  const std::string text = rank.index() == 1 ? "[model]\nkind = \"mlq\"" : std::string(kRecipe);
  const std::string told = told_by([&] {
    const ArrayModel model(Session::on(rank.group()),
                           [&] { return parse_array_recipe(text, "recipe"); });
  });
  EXPECT_NE(told.find("mlq"), std::string::npos) << told;
  EXPECT_TRUE(told.ends_with(", on rank 1")) << told;
}

// The step that was refused counts for nothing, and the next one is as if it had not been.
RANK_TEST(ArrayModel, WhatOneRankRefusesIsToldEverywhere, 1, 3) {
  std::string text(kRecipe);
  text.replace(text.find("mean_square"), 11, "cross_entropy");
  const Recipe recipe = parse_array_recipe(text, "recipe");
  ArrayModel model(Session::on(rank.group()), recipe);
  ArrayModel alone(Session::on(Group()), recipe);
  const at::Tensor inputs = at::arange(6, at::kDouble).view({2, 3});
  const at::Tensor classes = at::arange(2, at::kDouble);
  const bool wrong = rank.index() == rank.size() - 1;
  const at::Tensor given = wrong ? classes + 1 : classes;  // there is no class 2
  const std::string where = rank.size() == 1 ? "" : ", on rank " + std::to_string(rank.size() - 1);
  const std::string expected =
      "target 'targets': sample 1 has 2, not a whole number from 0 to 1" + where;
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(told_by([&] { model.step(inputs, given); }), expected);
    EXPECT_EQ(told_by([&] { (void)model.loss(inputs, given); }), expected);
    EXPECT_EQ(model.steps(), step);
    EXPECT_NEAR(model.step(inputs, classes), alone.step(inputs, classes), 1e-12);
  }
}

RANK_TEST(ArrayModel, AFileThatCannotBeReadIsToldEverywhere, 2) {
  ArrayModel model(Session::on(rank.group()), parse_array_recipe(kRecipe, "recipe"));
  try {
    model.load("/no/such/file");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_NE(std::string(error.what()).find("/no/such/file"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace troika::test
