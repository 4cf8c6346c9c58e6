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
constexpr std::int64_t kSamples = 23;  // of all ranks

struct Arrays {
  at::Tensor inputs, targets;
};

Arrays batch_of(std::int64_t step) {
  const at::Tensor inputs =
      at::arange(kSamples * 3, at::kDouble).add_(static_cast<double>(step)).sin_().view({-1, 3});
  return {inputs, at::stack({inputs.prod(1), inputs.sum(1)}, 1)};
}

// Uneven shares: rank 0 has most, and the last rank none in every third step.
Arrays share_of(const Arrays& all, const Rank& rank, std::int64_t step) {
  const std::int64_t each = 3;
  const bool idle = rank.size() > 1 && rank.index() == rank.size() - 1 && step % 3 == 0;
  const std::int64_t others = each * (rank.size() - 1 - (step % 3 == 0 && rank.size() > 1 ? 1 : 0));
  const std::int64_t first = kSamples - others;
  const std::int64_t begin = rank.index() == 0 ? 0 : first + each * (rank.index() - 1);
  const std::int64_t count = rank.index() == 0 ? first : (idle ? 0 : each);
  return {all.inputs.narrow(0, std::min(begin, kSamples), count),
          all.targets.narrow(0, std::min(begin, kSamples), count)};
}

RANK_TEST(ArrayModel, TrainsAsOneRankDoes, 1, 2, 3) {
  const Recipe recipe = parse_array_recipe(kRecipe, "recipe");
  ArrayModel model(Session::on(rank.group()), recipe);
  ArrayModel alone(Session::on(Group()), recipe);
  for (std::int64_t step = 0; step < 20; ++step) {
    const Arrays all = batch_of(step);
    const Arrays own = share_of(all, rank, step);
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
