// LibTorch's own optimisers as an independent judge of ours.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <troika/optim/optimizer.h>

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
double difference(const OptimizerRecipe& recipe, Arena& arena, const Twin& twin,
                  torch::optim::Optimizer& judge) {
  const auto optimizer = make_optimizer(recipe, arena);
  for (std::int64_t step = 1; step <= 10; ++step) {
    give_gradients(arena, step);
    for (std::size_t i = 0; i < twin.all.size(); ++i) {
      at::Tensor parameter = twin.all[i];
      parameter.mutable_grad() = arena.parameters()[i]->gradient() * 0.25;
    }
    judge.step();
    optimizer->step({recipe.lr, 0.25, step});
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
  OptimizerRecipe recipe;
  recipe.lr = 0.01;
  torch::optim::AdamWOptions options(recipe.lr);
  options.betas({recipe.betas[0], recipe.betas[1]}).eps(recipe.eps);
  torch::optim::AdamW judge(twin.groups(options, recipe.weight_decay), options);
  EXPECT_LT(difference(recipe, arena, twin, judge), 1e-14);
}

TEST(AgainstLibTorch, Sgd) {
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      if (nesterov && momentum == 0) continue;
      Arena arena = arena_of(mixed_specs(), kFp64);
      const Twin twin(arena);
      OptimizerRecipe recipe;
      recipe.kind = OptimizerKind::kSgd;
      recipe.lr = 0.01;
      recipe.momentum = momentum;
      recipe.nesterov = nesterov;
      torch::optim::SGDOptions options(recipe.lr);
      options.momentum(momentum).nesterov(nesterov);
      torch::optim::SGD judge(twin.groups(options, recipe.weight_decay), options);
      EXPECT_LT(difference(recipe, arena, twin, judge), 1e-14) << momentum << " " << nesterov;
    }
  }
}

}  // namespace
}  // namespace troika
