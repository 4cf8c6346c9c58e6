// GradScaler in a process alone. Several ranks: tests/ranks/own_module/mixed_precision_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/parallel/data_parallel/grad_scaler.h>

#include <limits>
#include <sstream>
#include <string>

namespace troika {
namespace {

using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A weight whose gradient is what the batch says.
struct Loop {
  explicit Loop(const GradScalerOptions& options = {})
      : scaler(Session::on(Group()), options), optimizer({weight}, 1.0) {}
  void backward(float gradient) {
    optimizer.zero_grad();
    scaler.scale(weight * gradient).backward();
  }
  bool step(float gradient) {
    backward(gradient);
    const bool stepped = scaler.step(optimizer);
    scaler.update();
    return stepped;
  }
  at::Tensor weight = at::zeros({}).requires_grad_(true);
  GradScaler scaler;
  torch::optim::SGD optimizer;
};

template <class Body>
std::string usage_error_of(const Body& body) {
  try {
    body();
  } catch (const UsageError& error) {
    EXPECT_FALSE(error.hint().empty());
    return error.what();
  }
  ADD_FAILURE() << "no UsageError";
  return "";
}

TEST(GradScaler, StepsWithUnscaledGradients) {
  Loop loop;
  EXPECT_TRUE(loop.step(3));
  EXPECT_EQ(loop.weight.grad().item<float>(), 3);
  EXPECT_EQ(loop.weight.item<float>(), -3);
}

TEST(GradScaler, SkipsAndBacksOffWhereGradientsAreNotFinite) {
  Loop loop({.initial_scale = 8, .growth_interval = 2});
  EXPECT_FALSE(loop.step(kInfinity));
  EXPECT_EQ(loop.weight.item<float>(), 0);
  EXPECT_EQ(loop.scaler.scale_value(), 4);
  EXPECT_FALSE(loop.step(1e38F));  // the scale makes it infinite
  EXPECT_EQ(loop.scaler.scale_value(), 2);
  EXPECT_TRUE(loop.step(1));
  EXPECT_TRUE(loop.step(1));
  EXPECT_EQ(loop.scaler.state(), (GradScaler::State{4, 0}));
}

TEST(GradScaler, UnscalesForClippingOnce) {
  Loop loop;
  loop.backward(30);
  loop.scaler.unscale_(loop.optimizer);
  EXPECT_EQ(torch::nn::utils::clip_grad_norm_(loop.weight, 3.0), 30);
  EXPECT_TRUE(loop.scaler.step(loop.optimizer));
  EXPECT_FLOAT_EQ(loop.weight.item<float>(), -3);
}

TEST(GradScaler, AddsUpLossesOfAStep) {
  Loop loop;
  for (const float gradient : {1.0F, 2.0F, 3.0F}) {
    loop.scaler.scale(loop.weight * gradient).backward();
  }
  loop.scaler.step(loop.optimizer);
  EXPECT_EQ(loop.weight.item<float>(), -6);
}

// As torch.amp: each optimiser by its own gradients, and the scale by those of all.
TEST(GradScaler, JudgesEachOptimiserByItself) {
  const at::Tensor a = at::zeros({}).requires_grad_(true), b = at::zeros({}).requires_grad_(true);
  torch::optim::SGD first({a}, 1.0), second({b}, 1.0);
  GradScaler scaler(Session::on(Group()), {.initial_scale = 8});
  scaler.scale(a + b * kInfinity).backward();
  EXPECT_TRUE(scaler.step(first));
  EXPECT_FALSE(scaler.step(second));
  scaler.update();
  EXPECT_EQ(a.item<float>(), -1);
  EXPECT_EQ(b.item<float>(), 0);
  EXPECT_EQ(scaler.scale_value(), 4);
}

TEST(GradScaler, CountsAnOptimiserWhoseStepTheLoopLeavesOut) {
  Loop loop({.initial_scale = 8});
  loop.backward(kInfinity);
  loop.scaler.unscale_(loop.optimizer);
  loop.scaler.update();
  EXPECT_EQ(loop.scaler.scale_value(), 4);
}

TEST(GradScaler, ScalesSixteenBitLossesInSinglePrecision) {
  GradScaler scaler(Session::on(Group()));
  const at::Tensor scaled = scaler.scale(at::full({}, 3, at::kHalf));
  EXPECT_EQ(scaled.scalar_type(), at::kFloat);
  EXPECT_EQ(scaled.item<float>(), 3 * 65536.0F);
  EXPECT_EQ(scaler.scale(at::ones({}, at::kDouble)).scalar_type(), at::kDouble);
}

TEST(GradScaler, DoesNothingWhereItIsNotEnabled) {
  Loop loop({.enabled = false});
  EXPECT_EQ(loop.scaler.scale_value(), 1);
  EXPECT_TRUE(loop.step(2));
  loop.scaler.unscale_(loop.optimizer);
  EXPECT_EQ(loop.weight.item<float>(), -2);
  EXPECT_TRUE(loop.step(kInfinity));
}

TEST(GradScaler, IsSavedAndLoaded) {
  Loop loop({.growth_interval = 3}), later({.growth_interval = 3});
  loop.step(1);
  loop.step(kInfinity);
  loop.step(1);
  std::stringstream file;
  torch::save(loop.scaler, file);
  torch::load(later.scaler, file);
  EXPECT_EQ(later.scaler.state(), (GradScaler::State{32768, 1}));
  later.scaler.load({16, 2});
  later.step(1);
  EXPECT_EQ(later.scaler.state(), (GradScaler::State{32, 0}));
  std::stringstream other;
  torch::save(at::ones({2}), other);
  EXPECT_THROW(torch::load(later.scaler, other), DataError);
}

TEST(GradScaler, RefusesCallsInAnOrderThatCannotBeRight) {
  Loop loop;
  auto& [weight, scaler, optimizer] = loop;
  EXPECT_THAT(usage_error_of([&] { scaler.update(); }), HasSubstr("update() without a step()"));
  loop.backward(1);
  scaler.unscale_(optimizer);
  EXPECT_THAT(usage_error_of([&] { scaler.unscale_(optimizer); }), HasSubstr("unscale_() twice"));
  EXPECT_THAT(usage_error_of([&] { (void)scaler.scale(weight); }),
              HasSubstr("scale() between unscale_() and step()"));
  scaler.step(optimizer);
  EXPECT_THAT(usage_error_of([&] { scaler.step(optimizer); }), HasSubstr("step() twice"));
  EXPECT_THAT(usage_error_of([&] { scaler.unscale_(optimizer); }),
              HasSubstr("unscale_() after step()"));
  scaler.update();
  EXPECT_EQ(weight.item<float>(), -1);
}

TEST(GradScaler, RefusesAStepWithoutABackwardPass) {
  Loop loop;
  auto& [weight, scaler, optimizer] = loop;
  EXPECT_THAT(usage_error_of([&] { scaler.step(optimizer); }),
              HasSubstr("step() without a loss that was scaled"));
  const at::Tensor loss = scaler.scale(weight);
  EXPECT_THAT(usage_error_of([&] { scaler.step(optimizer); }),
              HasSubstr("whose parameters have no gradients"));
  loss.backward();
  scaler.unscale_(optimizer);
  optimizer.zero_grad();
  EXPECT_THAT(usage_error_of([&] { scaler.step(optimizer); }),
              HasSubstr("whose parameters have no gradients"));
  EXPECT_TRUE(loop.step(1));  // which none of these has spoilt
  EXPECT_THAT(usage_error_of([&] { scaler.step(optimizer); }),
              HasSubstr("step() without a loss that was scaled"));
  EXPECT_EQ(weight.item<float>(), -1);
}

TEST(GradScaler, RefusesGradientsThatItCannotUnscale) {
  const at::Tensor half = at::zeros({2}, at::kHalf).requires_grad_(true);
  torch::optim::SGD optimizer({half}, 1.0);
  GradScaler scaler(Session::on(Group()));
  scaler.scale(half.sum()).backward();
  EXPECT_EQ(
      usage_error_of([&] { scaler.unscale_(optimizer); }),
      "parameter 0 of group 0 of the optimiser has a fp16 gradient, which cannot be unscaled");
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  torch::optim::SGD of_table(table->parameters(), 1.0);
  scaler.scale(table->forward(at::zeros({1}, at::kLong)).sum()).backward();
  EXPECT_THAT(usage_error_of([&] { scaler.step(of_table); }), HasSubstr("has a sparse gradient"));
  torch::nn::Linear linear(2, 2);
  linear->to(torch::kHalf);
  Replica model(linear.ptr(), Session::on(Group()));
  EXPECT_EQ(usage_error_of([&] { const GradScaler of_model(model); }),
            "parameter 'weight' is fp16: its gradients and updates would leave the range of fp16");
  EXPECT_NO_THROW(GradScaler(model, {.enabled = false}));
}

}  // namespace
}  // namespace troika
