// Parameters that are written to on some ranks only: found by their numbers of writes, or by their
// values, and told on every rank.
#include <limits>

#include "ranks/own_module/own_module.h"

namespace troika::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

RANK_TEST(OwnModuleValues, LoadOnOneRank, 2, 3) {
  Mlp module(1);
  DataParallel model(module, session_of(rank), small_buckets());
  backward(model);
  if (rank.index() == 1) {
    const std::string path = rank.folder() / "saved";
    torch::save(Mlp(7), path);
    torch::load(module, path);
  }
  module->zero_grad();
  EXPECT_THAT(
      usage_error_of([&] { backward(model); }),
      AllOf(HasSubstr("'first.weight' on rank 1 "), HasSubstr("other values than on rank 0")));
  model.broadcast_from(1);
  Mlp alone(7);
  module->zero_grad();
  backward(model);
  backward(*alone);
  expect_same_gradients(*module, *alone);
}

RANK_TEST(OwnModuleValues, WriteOnOneRank, 2) {
  Mlp module;
  DataParallel model(module, session_of(rank), small_buckets());
  backward(model);
  {
    const torch::NoGradGuard no_grad;
    if (rank.index() == 0) module->second->bias.add_(1);
  }
  EXPECT_THAT(usage_error_of([&] {
                // Each step sees a difference but for one in sixteen.
                for (int step = 0; step < 8; ++step) backward(model);
              }),
              HasSubstr("'second.bias' on rank 1 has other values"));
}

// A tensor that data() makes has a version counter of its own: only the values tell.
RANK_TEST(OwnModuleValues, WriteThroughDataOnOneRank, 2, 3) {
  Mlp module;
  DataParallel model(module, session_of(rank), small_buckets());
  backward(model);
  if (rank.index() == 1) module->second->bias.data().add_(1e-3);
  EXPECT_THAT(usage_error_of([&] {
                for (int step = 0; step < 8; ++step) backward(model);
              }),
              HasSubstr("'second.bias' on rank 1 has other values than on rank 0"));
  model.broadcast_from(0);
  Mlp alone;
  expect_alike_in_two_steps(model, *module, *alone);
}

// Each pass looks at a 64th of them.
RANK_TEST(OwnModuleValues, WriteThroughDataOfOneValueOfMany, 2) {
  auto module = std::make_shared<torch::nn::LinearImpl>(6, 1 << 13);
  DataParallel model(module, session_of(rank));
  const torch::Tensor x = torch::ones({1, 6});
  if (rank.index() == 1) module->weight.data()[5000][3].add_(1);
  EXPECT_THAT(usage_error_of([&] {
                for (int step = 0; step < 4 * 64; ++step) model.forward(x).sum().backward();
              }),
              HasSubstr("'weight' on rank 1 has other values"));
}

RANK_TEST(OwnModuleValues, WriteToAFrozenParameterOnOneRank, 2) {
  Mlp module;
  module->first->weight.requires_grad_(false);
  DataParallel model(module, session_of(rank), small_buckets());
  backward(model);
  if (rank.index() == 1) {
    const torch::NoGradGuard no_grad;
    module->first->weight.mul_(2);
  }
  EXPECT_THAT(usage_error_of([&] {
                for (int step = 0; step < 8; ++step) backward(model);
              }),
              HasSubstr("'first.weight' on rank 1 has other values"));
}

struct ScaledImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return base(x) * scale; }
  Mlp base = register_module("base", Mlp());
  torch::Tensor scale =
      register_parameter("scale", torch::ones(3, torch::kDouble), /*requires_grad=*/false);
};
TORCH_MODULE(Scaled);

RANK_TEST(OwnModuleValues, FrozenParameterToAnotherDtypeOnOneRank, 2) {
  Scaled module;
  DataParallel model(module, session_of(rank), small_buckets());
  backward(model);
  if (rank.index() == 1) module->scale.set_data(module->scale.to(torch::kFloat));
  EXPECT_THAT(usage_error_of([&] {
                for (int step = 0; step < 8; ++step) backward(model);
              }),
              HasSubstr("'scale' on rank 1 has another dtype or shape than on rank 0"));
}

// As between processors whose vectors are of different widths.
RANK_TEST(OwnModuleValues, WhatRoundingLeavesIsTakenFromRankZero, 2) {
  Mlp module, alone;
  DataParallel model(module, session_of(rank), small_buckets());
  const torch::Tensor weight = module->second->weight.data();
  constexpr int kSteps = 64;
  for (int step = 0; step < kSteps; ++step) {
    if (rank.index() == 1) {
      weight.copy_(torch::nextafter(weight, torch::full_like(weight, 100)));
    }
    backward(model);
  }
  // The last passes may not have seen it, each with one in sixteen.
  const torch::Tensor apart = (weight - alone->second->weight).abs();
  EXPECT_LE(largest(apart / alone->second->weight.abs()),
            kSteps / 8 * std::numeric_limits<double>::epsilon());
}

RANK_TEST(OwnModuleValues, WriteOfTheSameOnAllRanks, 2) {
  Mlp module, alone;
  DataParallel model(module, session_of(rank), small_buckets());
  for (auto* net : {&module, &alone}) {
    const torch::NoGradGuard no_grad;
    (*net)->second->bias.add_(1);
  }
  backward(model);
  backward(*alone);
  expect_same_gradients(*module, *alone);
}

}  // namespace
}  // namespace troika::test
