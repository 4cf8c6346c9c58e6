#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/optim/optimizer.h>

#include <cmath>
#include <map>
#include <numeric>

#include "arena_fixture.h"

namespace troika {
namespace {

using namespace testing_support;
using Values = std::vector<double>;

double norm(const Values& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

Values values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kDouble).contiguous().view(-1);
  const double* data = flat.const_data_ptr<double>();
  return {data, data + flat.numel()};
}

// The textbook formulas, one parameter at a time, in double precision.
class Reference {
 public:
  Reference(const OptimizerRecipe& recipe, const ParameterSpec& spec, Values w)
      : recipe_(recipe),
        decays_(spec.decays),
        w_(std::move(w)),
        m_(w_.size(), 0.0),
        v_(w_.size(), 0.0) {}

  [[nodiscard]] const Values& weights() const { return w_; }

  void step(const Values& g, double lr, std::int64_t t) {
    switch (recipe_.kind) {
      case OptimizerKind::kSgd:
        return sgd(g, lr);
      case OptimizerKind::kAdamW:
        return adamw(g, lr, t);
      case OptimizerKind::kLamb:
        return lamb(g, lr, t);
      case OptimizerKind::kLars:
        return lars(g, lr);
    }
  }

 private:
  [[nodiscard]] double decay() const { return decays_ ? recipe_.weight_decay : 0; }

  void sgd(const Values& g, double lr) {
    for (std::size_t i = 0; i < w_.size(); ++i) {
      const double d = g[i] + decay() * w_[i];
      m_[i] = recipe_.momentum * m_[i] + d;
      w_[i] -= lr * (recipe_.nesterov ? d + recipe_.momentum * m_[i] : m_[i]);
    }
  }

  Values adam_direction(const Values& g, std::int64_t t) {
    const double b1 = recipe_.betas[0], b2 = recipe_.betas[1];
    Values direction(w_.size());
    for (std::size_t i = 0; i < w_.size(); ++i) {
      m_[i] = b1 * m_[i] + (1 - b1) * g[i];
      v_[i] = b2 * v_[i] + (1 - b2) * g[i] * g[i];
      const double m = m_[i] / (1 - std::pow(b1, t)), v = v_[i] / (1 - std::pow(b2, t));
      direction[i] = m / (std::sqrt(v) + recipe_.eps);
    }
    return direction;
  }

  void adamw(const Values& g, double lr, std::int64_t t) {
    const Values direction = adam_direction(g, t);
    for (std::size_t i = 0; i < w_.size(); ++i) w_[i] -= lr * (direction[i] + decay() * w_[i]);
  }

  void lamb(const Values& g, double lr, std::int64_t t) {
    Values u = adam_direction(g, t);
    for (std::size_t i = 0; i < w_.size(); ++i) u[i] += decay() * w_[i];
    const double ratio = decays_ ? norm(w_) / norm(u) : 1;
    for (std::size_t i = 0; i < w_.size(); ++i) w_[i] -= lr * ratio * u[i];
  }

  void lars(const Values& g, double lr) {
    const double local =
        decays_ ? kLarsTrust * norm(w_) / (norm(g) + recipe_.weight_decay * norm(w_)) : 1;
    for (std::size_t i = 0; i < w_.size(); ++i) {
      const double d = lr * local * (g[i] + decay() * w_[i]);
      m_[i] = recipe_.momentum * m_[i] + d;
      w_[i] -= recipe_.nesterov ? d + recipe_.momentum * m_[i] : m_[i];
    }
  }

  OptimizerRecipe recipe_;
  bool decays_;
  Values w_, m_, v_;
};

std::vector<OptimizerRecipe> all_recipes() {
  std::vector<OptimizerRecipe> recipes;
  for (const OptimizerKind kind :
       {OptimizerKind::kSgd, OptimizerKind::kAdamW, OptimizerKind::kLamb, OptimizerKind::kLars}) {
    OptimizerRecipe recipe;
    recipe.kind = kind;
    recipe.eps = 1e-3;  // large enough to be seen
    recipes.push_back(recipe);
    recipe.momentum = 0.9;
    if (kind == OptimizerKind::kSgd || kind == OptimizerKind::kLars) {
      recipes.push_back(recipe);
      recipe.nesterov = true;
      recipes.push_back(recipe);
    }
  }
  return recipes;
}

std::string describe(const OptimizerRecipe& recipe) {
  return "kind " + std::to_string(static_cast<int>(recipe.kind)) + " momentum " +
         std::to_string(recipe.momentum) + " nesterov " + std::to_string(recipe.nesterov);
}

constexpr int kSteps = 4;
double rate_of(std::int64_t step) {
  return 0.1 / static_cast<double>(step);
}

// The largest difference from the reference after kSteps steps.
double difference_from_reference(const OptimizerRecipe& recipe, NumericTypes types) {
  Arena arena = arena_of(mixed_specs(), types);
  std::vector<Reference> references;
  for (const auto& p : arena.parameters()) {
    references.emplace_back(recipe, p->spec(), values_of(p->master()));
  }
  const auto optimizer = make_optimizer(recipe, arena);
  const double scale = 1.0 / 7;
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    give_gradients(arena, step);
    for (std::size_t i = 0; i < references.size(); ++i) {
      Values g = values_of(arena.parameters()[i]->gradient());
      for (double& value : g) value *= scale;
      references[i].step(g, rate_of(step), step);
    }
    optimizer->step({rate_of(step), scale, step});
  }
  double worst = 0;
  for (std::size_t i = 0; i < references.size(); ++i) {
    const Values ours = values_of(arena.parameters()[i]->master());
    for (std::size_t k = 0; k < ours.size(); ++k) {
      worst = std::max(worst, std::abs(ours[k] - references[i].weights()[k]));
    }
  }
  return worst;
}

TEST(Optimizer, FollowsTheTextbook) {
  for (const OptimizerRecipe& recipe : all_recipes()) {
    EXPECT_LT(difference_from_reference(recipe, kFp64), 1e-14) << describe(recipe);
    EXPECT_LT(difference_from_reference(recipe, kFp32), 2e-6) << describe(recipe);
  }
}

// All bits an optimiser leaves behind, weights and state.
std::vector<at::Tensor> outcome(const OptimizerRecipe& recipe, NumericTypes types, int threads) {
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  Arena arena = arena_of(mixed_specs(), types);
  const auto optimizer = make_optimizer(recipe, arena);
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    give_gradients(arena, step);
    optimizer->step({rate_of(step), 1.0, step});
  }
  at::set_num_threads(before);
  std::vector<at::Tensor> tensors;
  for (const auto& p : arena.parameters()) tensors.push_back(p->master());
  for (const NamedState& state : optimizer->state()) tensors.push_back(state.tensor);
  return tensors;
}

TEST(Optimizer, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const OptimizerRecipe& recipe : all_recipes()) {
    const auto alone = outcome(recipe, kFp32, 1);
    for (const int threads : {2, 3}) {
      const auto together = outcome(recipe, kFp32, threads);
      ASSERT_EQ(alone.size(), together.size());
      for (std::size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(alone[i].equal(together[i])) << describe(recipe) << ", tensor " << i;
      }
    }
  }
}

TEST(Optimizer, WritesTheWorkingCopyInTheSamePass) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const OptimizerRecipe& recipe : all_recipes()) {
      Arena arena = arena_of(mixed_specs(), {type, at::kFloat});
      give_gradients(arena, 1);
      make_optimizer(recipe, arena)->step({0.1, 1.0, 1});
      for (const auto& p : arena.parameters()) {
        EXPECT_TRUE(p->working_weight().equal(p->master().to(type))) << describe(recipe);
      }
    }
  }
}

TEST(Optimizer, RoundsWorkingCopiesAsTensorsDo) {
  const std::vector specs = {spec_of("w", {8})};
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    Arena arena = arena_of(specs, {type, at::kFloat});
    const Parameter& w = arena.parameter("w");
    const float nan = std::numeric_limits<float>::quiet_NaN();
    // Ties to even in both types, an overflow of fp16, a subnormal, infinity and not-a-number.
    w.master().copy_(at::tensor({1.00390625F, 1.01171875F, 1.00048828125F, 70000.0F, 1e-7F, -0.0F,
                                 std::numeric_limits<float>::infinity(), nan}));
    give_gradients(arena, 1, 0.0);
    OptimizerRecipe recipe;
    recipe.kind = OptimizerKind::kSgd;
    make_optimizer(recipe, arena)->step({0.0, 1.0, 1});
    EXPECT_TRUE(at::allclose(w.working_weight(), w.master().to(type), 0, 0, true)) << type;
  }
}

TEST(Optimizer, NamesItsState) {
  const std::vector specs = {spec_of("b", {2, 3}), spec_of("a", {4})};
  const auto names = [&](OptimizerKind kind, double momentum) {
    Arena arena = arena_of(specs, kFp32);
    OptimizerRecipe recipe;
    recipe.kind = kind;
    recipe.momentum = momentum;
    std::vector<std::string> found;
    for (const NamedState& state : make_optimizer(recipe, arena)->state()) {
      found.push_back(state.parameter + ":" + std::string(state.kind));
      EXPECT_EQ(state.begin, 0);
      EXPECT_EQ(state.tensor.numel(), arena.parameter(state.parameter).master().numel());
    }
    return found;
  };
  using testing::ElementsAre;
  EXPECT_THAT(names(OptimizerKind::kSgd, 0), ElementsAre());
  EXPECT_THAT(names(OptimizerKind::kSgd, 0.9), ElementsAre("b:momentum", "a:momentum"));
  EXPECT_THAT(names(OptimizerKind::kLars, 0.9), ElementsAre("b:momentum", "a:momentum"));
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kLamb}) {
    EXPECT_THAT(names(kind, 0),
                ElementsAre("b:exp_avg", "b:exp_avg_sq", "a:exp_avg", "a:exp_avg_sq"));
  }
}

TEST(Optimizer, GoesOnFromStateThatWasWrittenIntoIt) {
  for (const OptimizerRecipe& recipe : all_recipes()) {
    Arena first = arena_of(mixed_specs(), kFp32), second = arena_of(mixed_specs(), kFp32);
    const auto straight = make_optimizer(recipe, first);
    give_gradients(first, 1);
    straight->step({0.1, 1.0, 1});

    const auto resumed = make_optimizer(recipe, second);
    const auto from = straight->state(), to = resumed->state();
    for (std::size_t i = 0; i < from.size(); ++i) to[i].tensor.copy_(from[i].tensor);
    second.masters(0, second.units()).copy_(first.masters(0, first.units()));
    for (Arena* arena : {&first, &second}) give_gradients(*arena, 2);
    straight->step({0.1, 1.0, 2});
    resumed->step({0.1, 1.0, 2});
    EXPECT_TRUE(first.masters(0, first.units()).equal(second.masters(0, second.units())))
        << describe(recipe);
  }
}

TEST(Optimizer, RefusesAStepWithoutAGradientAndChangesNothing) {
  Arena arena = arena_of(mixed_specs(), kFp32);
  give_gradients(arena, 1);
  arena.parameter("model.layer.bias").release_gradient();
  const at::Tensor before = arena.masters(0, arena.units()).clone();
  const auto optimizer = make_optimizer({}, arena);
  try {
    optimizer->step({0.1, 1.0, 1});
    FAIL() << "no error";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("model.layer.bias"));
  }
  EXPECT_TRUE(before.equal(arena.masters(0, arena.units())));
}

TEST(Optimizer, LeavesPaddingZero) {
  Arena arena = arena_of(mixed_specs(), kFp32);
  double inside = 0;
  give_gradients(arena, 1);
  make_optimizer({}, arena)->step({0.1, 1.0, 1});
  for (const auto& p : arena.parameters()) {
    inside += p->master().to(at::kDouble).abs().sum().item<double>();
  }
  const at::Tensor all = arena.masters(0, arena.units());
  EXPECT_NEAR(all.to(at::kDouble).abs().sum().item<double>(), inside, 1e-9);
  EXPECT_GT(all.numel(), arena.parameter_count());
}

// One parameter [1, 2] with weights (3, 4) after one step with the given gradient.
std::pair<double, double> one_step(const OptimizerRecipe& recipe, double first, double second) {
  const std::vector specs = {spec_of("w", {1, 2})};
  Arena arena = arena_of(specs, kFp64);
  Parameter& w = arena.parameter("w");
  w.master().copy_(at::tensor({3.0, 4.0}, at::kDouble));
  w.add_gradient(at::tensor({first, second}, at::kDouble).view({1, 2}));
  make_optimizer(recipe, arena)->step({0.1, 1.0, 1});
  return {w.master()[0][0].item<double>(), w.master()[0][1].item<double>()};
}

TEST(Lamb, MatchesAComputationByHand) {
  OptimizerRecipe recipe;
  recipe.kind = OptimizerKind::kLamb;
  recipe.eps = 0.0625;
  recipe.weight_decay = 0;
  // At step 1 the direction is (8 / (8 + 1/16), 0): only its sign is left, times |w| = 5.
  const auto [first, second] = one_step(recipe, 8, 0);
  EXPECT_NEAR(first, 3 - 0.1 * 5, 1e-15);
  EXPECT_EQ(second, 4);
}

TEST(Lars, MatchesAComputationByHand) {
  OptimizerRecipe recipe;
  recipe.kind = OptimizerKind::kLars;
  recipe.weight_decay = 0.1;
  // |w| = 5, |g| = 1: rate 0.1 x 0.001 x 5 / (1 + 0.5), step g + 0.1 w = (0.9, 1.2).
  const auto [first, second] = one_step(recipe, 0.6, 0.8);
  EXPECT_NEAR(first, 3 - 0.1 * 0.001 * 5 / 1.5 * 0.9, 1e-15);
  EXPECT_NEAR(second, 4 - 0.1 * 0.001 * 5 / 1.5 * 1.2, 1e-15);
}

TEST(Adaptation, IsOffWhereANormIsZero) {
  const std::vector specs = {spec_of("w", {2, 2})};
  for (const OptimizerKind kind : {OptimizerKind::kLamb, OptimizerKind::kLars}) {
    OptimizerRecipe recipe;
    recipe.kind = kind;
    Arena arena = arena_of(specs, kFp64);
    const at::Tensor w = arena.parameter("w").master();
    w.zero_();
    arena.parameter("w").add_gradient(at::full({2, 2}, 2.0, at::kDouble));
    make_optimizer(recipe, arena)->step({0.1, 1.0, 1});  // |w| = 0
    const double step = kind == OptimizerKind::kLamb ? 0.1 : 0.2;
    EXPECT_TRUE(at::allclose(w, at::full({2, 2}, -step, at::kDouble), 1e-6, 0));

    arena.release_gradients();
    arena.parameter("w").claim_zeroed();
    make_optimizer(recipe, arena)->step({0.1, 1.0, 1});  // |g| = 0
    EXPECT_TRUE(w.isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace troika
