// The rule of servers whose workers push what steps of their own have changed.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/optim/chunks.h>
#include <troika/optim/options.h>
#include <troika/param/arena.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace troika {
namespace {

constexpr double kRate = 0.7, kMomentum = 0.9;
// Of several chunks, each beside the next: a step at a border must not be taken twice.
constexpr std::int64_t kElements = 2 * kChunkElements + 1000;

// A model of one parameter, and its outer steps.
class Stepped {
 public:
  explicit Stepped(bool waits_for_round, double momentum = kMomentum)
      : arena_(std::vector<ParameterSpec>{spec()}, NumericTypes{at::kDouble, at::kDouble},
               Group()) {
    arena_.initialize(1);
    optimizer_ = make_optimizer(outer_optimizer(kRate, {momentum, waits_for_round}), arena_);
  }

  void push(const at::Tensor& change, RoundShare round = {}) {
    arena_.release_gradients();
    arena_.local_shards()[0].gradient.view({-1}).copy_(change * 4);
    static_cast<void>(arena_.parameters()[0]->claim());
    optimizer_->step(
        {.learning_rate = kRate, .gradient_scale = 0.25, .step = ++updates_, .round = round});
  }
  [[nodiscard]] at::Tensor values() const {
    return arena_.local_shards()[0].master.view({-1}).clone();
  }
  [[nodiscard]] std::size_t states() const { return optimizer_->state().size(); }

 private:
  static ParameterSpec spec() {
    ParameterSpec one;
    one.name = "one";
    one.shape = {kElements};
    return one;
  }

  Arena arena_;
  std::unique_ptr<Optimizer> optimizer_;
  std::int64_t updates_ = 0;
};

double distance(const at::Tensor& one, const at::Tensor& other) {
  return (one - other).abs().max().item<double>();
}

TEST(Outer, OnePushIsNesterovsMomentum) {
  Stepped outer(/*waits_for_round=*/false);
  at::Tensor w = outer.values(), b = at::zeros_like(w);
  for (int i = 0; i < 3; ++i) {
    const at::Tensor g = at::randn({kElements}, at::kDouble);
    outer.push(g);
    b = kMomentum * b + g;
    w = w - kRate * (g + kMomentum * b);
    EXPECT_LT(distance(outer.values(), w), 1e-12);
  }
  EXPECT_EQ(outer.states(), 1U);
}

TEST(Outer, PushesOfARoundAreOneOfTheirMean) {
  constexpr std::int64_t kPushes = 3;
  Stepped together(false), apart(true);
  EXPECT_EQ(apart.states(), 2U);
  for (int round = 0; round < 4; ++round) {
    at::Tensor sum = at::zeros({kElements}, at::kDouble);
    for (std::int64_t i = 0; i < kPushes; ++i) {
      const at::Tensor g = at::randn({kElements}, at::kDouble), before = apart.values();
      apart.push(g, {1.0 / kPushes, i + 1 == kPushes});
      if (i + 1 < kPushes) {
        EXPECT_LT(distance(apart.values(), before - kRate / kPushes * g), 1e-12);
      }
      sum += g;
    }
    together.push(sum / kPushes);
    EXPECT_LT(distance(apart.values(), together.values()), 1e-12);
  }
}

// Rounds of any length, whose shares differ as workers come and go.
TEST(Outer, TheMomentumTakesEachPushByItsShareOnce) {
  Stepped outer(true);
  at::Tensor w = outer.values(), b = at::zeros_like(w), s = at::zeros_like(w);
  for (const RoundShare round :
       {RoundShare{1, true}, RoundShare{0.5, false}, RoundShare{1, true}, RoundShare{0.25, false},
        RoundShare{0.25, false}, RoundShare{0.5, true}, RoundShare{0.125, true}}) {
    const at::Tensor g = at::randn({kElements}, at::kDouble);
    outer.push(g, round);
    w = w - kRate * round.share * g;
    s = s + round.share * g;
    if (round.ends_round) {
      b = kMomentum * b + s;
      w = w - kRate * kMomentum * b;
      s = at::zeros_like(s);
    }
    EXPECT_LT(distance(outer.values(), w), 1e-12);
  }
}

TEST(Outer, WithoutMomentumKeepsNothing) {
  Stepped outer(true, 0);
  EXPECT_EQ(outer.states(), 0U);
  const at::Tensor before = outer.values(), g = at::ones({kElements}, at::kDouble);
  outer.push(g, {0.5, false});
  outer.push(g, {0.5, true});
  EXPECT_LT(distance(outer.values(), before - kRate * g), 1e-12);
}

}  // namespace
}  // namespace troika
