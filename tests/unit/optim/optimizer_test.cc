#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/optim/options.h>

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
  Reference(const OptimizerOptions& options, const ParameterSpec& spec, Values w)
      : options_(options),
        decays_(spec.decays),
        w_(std::move(w)),
        m_(w_.size(), 0.0),
        v_(w_.size(), 0.0) {}

  [[nodiscard]] const Values& weights() const { return w_; }

  void step(const Values& g, double lr, std::int64_t t) {
    const std::string_view kind = options_.kind.name();
    if (kind == "sgd") return sgd(options_.kind.as<MomentumOptions>(), g, lr);
    if (kind == "adamw") return adamw(options_.kind.as<MomentOptions>(), g, lr, t);
    if (kind == "lamb") return lamb(options_.kind.as<MomentOptions>(), g, lr, t);
    if (kind == "lars") return lars(options_.kind.as<MomentumOptions>(), g, lr);
    if (kind == "lion") return lion(betas_of(options_.kind), g, lr);
    ADD_FAILURE() << "no formula for " << kind;
  }

 private:
  [[nodiscard]] double decay() const { return decays_ ? options_.weight_decay : 0; }

  void sgd(const MomentumOptions& options, const Values& g, double lr) {
    for (std::size_t i = 0; i < w_.size(); ++i) {
      const double d = g[i] + decay() * w_[i];
      m_[i] = options.momentum * m_[i] + d;
      w_[i] -= lr * (options.nesterov ? d + options.momentum * m_[i] : m_[i]);
    }
  }

  Values adam_direction(const MomentOptions& options, const Values& g, std::int64_t t) {
    const auto [b1, b2] = options.betas;
    Values direction(w_.size());
    for (std::size_t i = 0; i < w_.size(); ++i) {
      m_[i] = b1 * m_[i] + (1 - b1) * g[i];
      v_[i] = b2 * v_[i] + (1 - b2) * g[i] * g[i];
      const double m = m_[i] / (1 - std::pow(b1, t)), v = v_[i] / (1 - std::pow(b2, t));
      direction[i] = m / (std::sqrt(v) + options.eps);
    }
    return direction;
  }

  void adamw(const MomentOptions& options, const Values& g, double lr, std::int64_t t) {
    const Values direction = adam_direction(options, g, t);
    for (std::size_t i = 0; i < w_.size(); ++i) w_[i] -= lr * (direction[i] + decay() * w_[i]);
  }

  void lamb(const MomentOptions& options, const Values& g, double lr, std::int64_t t) {
    Values u = adam_direction(options, g, t);
    for (std::size_t i = 0; i < w_.size(); ++i) u[i] += decay() * w_[i];
    const double ratio = decays_ ? norm(w_) / norm(u) : 1;
    for (std::size_t i = 0; i < w_.size(); ++i) w_[i] -= lr * ratio * u[i];
  }

  void lars(const MomentumOptions& options, const Values& g, double lr) {
    const double local =
        decays_ ? kLarsTrust * norm(w_) / (norm(g) + options_.weight_decay * norm(w_)) : 1;
    for (std::size_t i = 0; i < w_.size(); ++i) {
      const double d = lr * local * (g[i] + decay() * w_[i]);
      m_[i] = options.momentum * m_[i] + d;
      w_[i] -= options.nesterov ? d + options.momentum * m_[i] : m_[i];
    }
  }

  void lion(const std::array<double, 2>& betas, const Values& g, double lr) {
    const auto [b1, b2] = betas;
    for (std::size_t i = 0; i < w_.size(); ++i) {
      const double u = b1 * m_[i] + (1 - b1) * g[i];
      const double sign = u > 0 ? 1 : u < 0 ? -1 : 0;
      w_[i] -= lr * (sign + decay() * w_[i]);
      m_[i] = b2 * m_[i] + (1 - b2) * g[i];
    }
  }

  OptimizerOptions options_;
  bool decays_;
  Values w_, m_, v_;
};

// Every kind, with every kind of momentum that it has.
std::vector<OptimizerOptions> all_options() {
  std::vector<OptimizerOptions> all;
  for (const OptimizerKind* kind : OptimizerKind::all()) {
    OptimizerOptions options = options_of(kind->name());
    // Large enough to be seen.
    if (options.kind.holds<MomentOptions>()) options.kind.as<MomentOptions>().eps = 1e-3;
    all.push_back(options);
    if (!options.kind.holds<MomentumOptions>()) continue;
    for (const bool nesterov : {false, true}) {
      options.kind.as<MomentumOptions>() = {.momentum = 0.9, .nesterov = nesterov};
      all.push_back(options);
    }
  }
  return all;
}

std::string describe(const OptimizerOptions& options) {
  std::string text(options.kind.name());
  if (!options.kind.holds<MomentumOptions>()) return text;
  const auto& own = options.kind.as<MomentumOptions>();
  return text + " momentum " + std::to_string(own.momentum) + " nesterov " +
         std::to_string(own.nesterov);
}

constexpr int kSteps = 4;
double rate_of(std::int64_t step) {
  return 0.1 / static_cast<double>(step);
}

// The largest difference from the reference after kSteps steps.
double difference_from_reference(const OptimizerOptions& options, NumericTypes types) {
  Arena arena = arena_of(mixed_specs(), types);
  std::vector<Reference> references;
  for (const auto& p : arena.parameters()) {
    references.emplace_back(options, p->spec(), values_of(p->master()));
  }
  const auto optimizer = make_optimizer(options, arena);
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
  for (const OptimizerOptions& options : all_options()) {
    EXPECT_LT(difference_from_reference(options, kFp64), 1e-14) << describe(options);
    EXPECT_LT(difference_from_reference(options, kFp32), 2e-6) << describe(options);
  }
}

// Behind a slot lies its padding, which is zero (Arena::masters), or the next one.
TEST(Optimizer, ChangesNothingBehindASlot) {
  for (const OptimizerOptions& options : all_options()) {
    for (const NumericTypes types : {kFp64, kFp32}) {
      Arena arena = arena_of(mixed_specs(), types);
      const auto optimizer = make_optimizer(options, arena);
      for (std::int64_t step = 1; step <= kSteps; ++step) {
        give_gradients(arena, step);
        optimizer->step({rate_of(step), 1.0, step});
      }
      std::int64_t values = 0;
      for (const auto& p : arena.parameters())
        values += p->master().ne(0).sum().item<std::int64_t>();
      EXPECT_EQ(arena.masters(0, arena.units()).ne(0).sum().item<std::int64_t>(), values)
          << describe(options);
    }
  }
}

// All bits an optimiser leaves behind, weights and state.
std::vector<at::Tensor> outcome(const OptimizerOptions& options, NumericTypes types, int threads) {
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  Arena arena = arena_of(mixed_specs(), types);
  const auto optimizer = make_optimizer(options, arena);
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
  for (const OptimizerOptions& options : all_options()) {
    const auto alone = outcome(options, kFp32, 1);
    for (const int threads : {2, 3}) {
      const auto together = outcome(options, kFp32, threads);
      ASSERT_EQ(alone.size(), together.size());
      for (std::size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(alone[i].equal(together[i])) << describe(options) << ", tensor " << i;
      }
    }
  }
}

TEST(Optimizer, WritesTheWorkingCopyInTheSamePass) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const OptimizerOptions& options : all_options()) {
      Arena arena = arena_of(mixed_specs(), {type, at::kFloat});
      give_gradients(arena, 1);
      make_optimizer(options, arena)->step({0.1, 1.0, 1});
      for (const auto& p : arena.parameters()) {
        EXPECT_TRUE(p->working_weight().equal(p->master().to(type))) << describe(options);
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
    make_optimizer(options_of("sgd"), arena)->step({0.0, 1.0, 1});
    EXPECT_TRUE(at::allclose(w.working_weight(), w.master().to(type), 0, 0, true)) << type;
  }
}

TEST(Optimizer, NamesItsState) {
  const std::vector specs = {spec_of("b", {2, 3}), spec_of("a", {4})};
  const auto names = [&](const OptimizerOptions& options) {
    Arena arena = arena_of(specs, kFp32);
    std::vector<std::string> found;
    for (const NamedState& state : make_optimizer(options, arena)->state()) {
      found.push_back(state.parameter + ":" + std::string(state.kind));
      EXPECT_EQ(state.begin, 0);
      EXPECT_EQ(state.tensor.numel(), arena.parameter(state.parameter).master().numel());
    }
    return found;
  };
  using testing::ElementsAre;
  EXPECT_THAT(names(options_of("sgd")), ElementsAre());
  EXPECT_THAT(names(with_momentum("sgd", 0.9)), ElementsAre("b:momentum", "a:momentum"));
  EXPECT_THAT(names(with_momentum("lars", 0.9)), ElementsAre("b:momentum", "a:momentum"));
  EXPECT_THAT(names(options_of("lion")), ElementsAre("b:exp_avg", "a:exp_avg"));
  for (const char* kind : {"adamw", "lamb"}) {
    EXPECT_THAT(names(options_of(kind)),
                ElementsAre("b:exp_avg", "b:exp_avg_sq", "a:exp_avg", "a:exp_avg_sq"));
  }
}

TEST(Optimizer, GoesOnFromStateThatWasWrittenIntoIt) {
  for (const OptimizerOptions& options : all_options()) {
    Arena first = arena_of(mixed_specs(), kFp32), second = arena_of(mixed_specs(), kFp32);
    const auto straight = make_optimizer(options, first);
    give_gradients(first, 1);
    straight->step({0.1, 1.0, 1});

    const auto resumed = make_optimizer(options, second);
    const auto from = straight->state(), to = resumed->state();
    for (std::size_t i = 0; i < from.size(); ++i) to[i].tensor.copy_(from[i].tensor);
    second.masters(0, second.units()).copy_(first.masters(0, first.units()));
    for (Arena* arena : {&first, &second}) give_gradients(*arena, 2);
    straight->step({0.1, 1.0, 2});
    resumed->step({0.1, 1.0, 2});
    EXPECT_TRUE(first.masters(0, first.units()).equal(second.masters(0, second.units())))
        << describe(options);
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
std::pair<double, double> one_step(const OptimizerOptions& options, double first, double second) {
  const std::vector specs = {spec_of("w", {1, 2})};
  Arena arena = arena_of(specs, kFp64);
  Parameter& w = arena.parameter("w");
  w.master().copy_(at::tensor({3.0, 4.0}, at::kDouble));
  w.add_gradient(at::tensor({first, second}, at::kDouble).view({1, 2}));
  make_optimizer(options, arena)->step({0.1, 1.0, 1});
  return {w.master()[0][0].item<double>(), w.master()[0][1].item<double>()};
}

TEST(Lamb, MatchesAComputationByHand) {
  OptimizerOptions options = options_of("lamb");
  options.kind.as<MomentOptions>().eps = 0.0625;
  options.weight_decay = 0;
  // At step 1 the direction is (8 / (8 + 1/16), 0): only its sign is left, times |w| = 5.
  const auto [first, second] = one_step(options, 8, 0);
  EXPECT_NEAR(first, 3 - 0.1 * 5, 1e-15);
  EXPECT_EQ(second, 4);
}

TEST(Lars, MatchesAComputationByHand) {
  OptimizerOptions options = options_of("lars");
  options.weight_decay = 0.1;
  // |w| = 5, |g| = 1: rate 0.1 x 0.001 x 5 / (1 + 0.5), step g + 0.1 w = (0.9, 1.2).
  const auto [first, second] = one_step(options, 0.6, 0.8);
  EXPECT_NEAR(first, 3 - 0.1 * 0.001 * 5 / 1.5 * 0.9, 1e-15);
  EXPECT_NEAR(second, 4 - 0.1 * 0.001 * 5 / 1.5 * 1.2, 1e-15);
}

TEST(Lion, MatchesAComputationByHand) {
  OptimizerOptions options = options_of("lion");
  options.weight_decay = 0.5;
  // Whatever the gradient's size, the step is the rate; without one only the decay is left.
  const auto [first, second] = one_step(options, -1e-30, 0);
  EXPECT_NEAR(first, 3 * (1 - 0.1 * 0.5) + 0.1, 1e-15);
  EXPECT_NEAR(second, 4 * (1 - 0.1 * 0.5), 1e-15);
}

// The sign looks further back than the average that it is of: the first beta weighs the sign's, the
// second what is kept.
TEST(Lion, TakesTheSignOfItsAverage) {
  const std::vector specs = {spec_of("w", {1, 1})};
  Arena arena = arena_of(specs, kFp64);
  OptimizerOptions options = options_of("lion");
  options.weight_decay = 0;
  betas_of(options.kind) = {0.5, 0.75};
  const auto optimizer = make_optimizer(options, arena);
  const at::Tensor w = arena.parameter("w").master();
  w.zero_();
  const auto step = [&](std::int64_t number, double gradient) {
    arena.release_gradients();
    arena.parameter("w").add_gradient(at::full({1, 1}, gradient, at::kDouble));
    optimizer->step({0.125, 1.0, number});
    return w.item<double>();
  };
  EXPECT_EQ(step(1, 8), -0.125);      // m = 2
  EXPECT_EQ(step(2, -1), -0.25);      // u = (2 - 1) / 2, m = 1.25
  EXPECT_EQ(step(3, -1.25), -0.25);   // u = 0, m = 0.625
  EXPECT_EQ(step(4, -0.75), -0.125);  // u < 0
  EXPECT_EQ(optimizer->state().front().tensor.item<double>(), 0.75 * 0.625 - 0.25 * 0.75);
}

TEST(Adaptation, IsOffWhereANormIsZero) {
  const std::vector specs = {spec_of("w", {2, 2})};
  for (const std::string_view kind : {"lamb", "lars"}) {
    const OptimizerOptions options = options_of(kind);
    Arena arena = arena_of(specs, kFp64);
    const at::Tensor w = arena.parameter("w").master();
    w.zero_();
    arena.parameter("w").add_gradient(at::full({2, 2}, 2.0, at::kDouble));
    make_optimizer(options, arena)->step({0.1, 1.0, 1});  // |w| = 0
    const double step = kind == "lamb" ? 0.1 : 0.2;
    EXPECT_TRUE(at::allclose(w, at::full({2, 2}, -step, at::kDouble), 1e-6, 0));

    arena.release_gradients();
    arena.parameter("w").claim_zeroed();
    make_optimizer(options, arena)->step({0.1, 1.0, 1});  // |g| = 0
    EXPECT_TRUE(w.isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace troika
