// LibTorch's own optimisers as an independent judge of ours.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <troika/optim/options.h>

#include "arena_fixture.h"

namespace troika {
namespace {

using namespace testing_support;

// A twin of the arena's parameters for LibTorch: two groups, with and without decay.
struct Twin {
  explicit Twin(const Arena& arena) {
    for (const auto& p : arena.parameters()) {
      all.push_back(p->master().clone().set_requires_grad(true));
      (p->spec().decays ? decaying : plain).push_back(all.back());
    }
  }
  template <typename Options>
  [[nodiscard]] std::vector<torch::optim::OptimizerParamGroup> groups(Options options,
                                                                      double decay) const {
    std::vector<torch::optim::OptimizerParamGroup> result;
    result.emplace_back(decaying, std::make_unique<Options>(Options(options).weight_decay(decay)));
    result.emplace_back(plain, std::make_unique<Options>(Options(options).weight_decay(0)));
    return result;
  }
  std::vector<at::Tensor> all, decaying, plain;
};

// The largest difference after ten steps in double precision.
double difference(const OptimizerOptions& options, Arena& arena, const Twin& twin,
                  torch::optim::Optimizer& judge) {
  const auto optimizer = make_optimizer(options, arena);
  for (std::int64_t step = 1; step <= 10; ++step) {
    give_gradients(arena, step);
    for (std::size_t i = 0; i < twin.all.size(); ++i) {
      at::Tensor parameter = twin.all[i];
      parameter.mutable_grad() = arena.parameters()[i]->gradient() * 0.25;
    }
    judge.step();
    optimizer->step({options.lr, 0.25, step});
  }
  double worst = 0;
  for (std::size_t i = 0; i < twin.all.size(); ++i) {
    const at::Tensor apart = arena.parameters()[i]->master() - twin.all[i].detach();
    worst = std::max(worst, apart.abs().max().item<double>());
  }
  return worst;
}

TEST(AgainstLibTorch, AdamW) {
  Arena arena = arena_of(mixed_specs(), kFp64);
  const Twin twin(arena);
  OptimizerOptions options = options_of("adamw");
  options.lr = 0.01;
  const auto& own = options.kind.as<MomentOptions>();
  torch::optim::AdamWOptions theirs(options.lr);
  theirs.betas({own.betas[0], own.betas[1]}).eps(own.eps);
  torch::optim::AdamW judge(twin.groups(theirs, options.weight_decay), theirs);
  EXPECT_LT(difference(options, arena, twin, judge), 1e-14);
}

TEST(AgainstLibTorch, Sgd) {
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      if (nesterov && momentum == 0) continue;
      Arena arena = arena_of(mixed_specs(), kFp64);
      const Twin twin(arena);
      OptimizerOptions options = with_momentum("sgd", momentum);
      options.kind.as<MomentumOptions>().nesterov = nesterov;
      options.lr = 0.01;
      torch::optim::SGDOptions theirs(options.lr);
      theirs.momentum(momentum).nesterov(nesterov);
      torch::optim::SGD judge(twin.groups(theirs, options.weight_decay), theirs);
      EXPECT_LT(difference(options, arena, twin, judge), 1e-14) << momentum << " " << nesterov;
    }
  }
}

}  // namespace
}  // namespace troika
