// Parameters that are written to on some ranks only: found by their numbers of writes, or by their
// values, and told on every rank.
#include <limits>

#include "ranks/own_module/recorded.h"

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
                // Each pass sees a difference but for one in sixteen.
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

// As between processors whose vectors are of different widths. Once it has been seen, it is let be
// for 64 passes.
RANK_TEST(OwnModuleValues, WhatRoundingLeavesIsTakenFromRankZero, 2) {
  Mlp module, alone;
  DataParallel model(module, session_of(rank), small_buckets());
  const torch::Tensor weight = module->second->weight.data();
  for (const int passes : {8, 64 + 8}) {
    if (rank.index() == 1) {
      weight.copy_(torch::nextafter(weight, torch::full_like(weight, 100)));
    }
    for (int pass = 0; pass < passes; ++pass) backward(model);
    EXPECT_TRUE(weight.equal(alone->second->weight));
  }
}

// What a forward pass has kept of a parameter is as good as before.
RANK_TEST(OwnModuleValues, RoundingIsNoWriteBetweenForwardAndBackward, 2) {
  Mlp module;
  DataParallel model(module, session_of(rank), small_buckets());
  const Samples batch(6);
  backward(model);
  for (int step = 0; step < 4; ++step) {
    if (rank.index() == 1) {
      const torch::Tensor weight = module->second->weight.data();
      weight.copy_(torch::nextafter(weight, torch::full_like(weight, 100)));
    }
    const torch::Tensor first = squared_error(model(batch.x), batch.y);
    const torch::Tensor second = squared_error(model(batch.x), batch.y);
    first.backward();
    second.backward();
  }
}

// Of numbers with few digits, rounding is much: what is counted as a write is none of it.
RANK_TEST(OwnModuleValues, SixteenBits, 2) {
  for (const bool counted : {true, false}) {
    torch::nn::Linear module(6, 3);
    module->to(torch::kBFloat16);
    DataParallel model(module, session_of(rank));
    const torch::Tensor x = torch::ones({2, 6}, torch::kBFloat16);
    const auto train = [&] {
      for (int step = 0; step < 8; ++step) model(x).sum().backward();
    };
    train();
    const torch::NoGradGuard no_grad;
    const torch::Tensor written = counted ? module->weight : module->weight.data();
    // One unit in the last place, or three of the largest.
    if (rank.index() == 1) written.mul_(counted ? 1 + 1.0 / 128 : 1 + 3.0 / 128);
    const torch::AutoGradMode grad(true);
    EXPECT_THAT(usage_error_of(train), HasSubstr("'weight' on rank 1 has other values"));
  }
}

// Sharpness-aware minimisation (Foret et al. 2021): each rank climbs by its own gradient, and the
// average is of gradients there.
RANK_TEST(OwnModuleValues, MayDifferForAWhile, 2) {
  for (const bool check : {true, false}) {
    Mlp module;
    DataParallelOptions options = small_buckets();
    options.check_values = check;
    DataParallel model(module, session_of(rank), options);
    const Samples own = Samples(6).slice(rank);
    const auto train = [&] {
      for (int i = 0; i < 8; ++i) {
        module->zero_grad();
        {
          const auto guard = model.no_sync();
          backward(model, own);
        }
        std::vector<torch::Tensor> climb;
        for (const auto& parameter : module->parameters()) {
          climb.push_back(0.05 * parameter.grad());
          parameter.data().add_(climb.back());
        }
        module->zero_grad();
        backward(model, own);
        for (std::size_t j = 0; j < climb.size(); ++j) {
          module->parameters()[j].data().sub_(climb[j]);
        }
      }
    };
    if (!check) {
      train();
    } else {
      EXPECT_THAT(usage_hint_of(train), HasSubstr("options.check_values = false"));
    }
  }
}

// No rank looks for what is not there.
RANK_TEST(OwnModuleValues, NoFalseAlarm, 2, 3) {
  const RecordedSession recorded(rank);
  const auto train = [&](auto module, const DataParallelOptions& options, at::ScalarType dtype) {
    DataParallel model(module, recorded.session(), options);
    torch::optim::AdamW optimizer(module->parameters(), torch::optim::AdamWOptions(1e-2));
    const torch::Tensor x = Samples(6).slice(rank).x.to(dtype);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      {
        const auto guard = model.no_sync();
        model.forward(x).square().mean().backward();
      }
      model.forward(x).square().mean().backward();
      optimizer.step();
    }
    model.join([&] { optimizer.step(); });
  };
  train(Mlp(), small_buckets(), torch::kDouble);
  DataParallelOptions compressed = small_buckets();
  compressed.hook = compress_to_bf16();
  train(Mlp(), compressed, torch::kDouble);
  torch::nn::Linear large(6, 1 << 13), half(6, 3);
  train(large, {}, torch::kFloat);
  half->to(torch::kBFloat16);
  train(half, {}, torch::kBFloat16);
  for (const RecordedOperation& each : recorded.operations()) {
    EXPECT_NE(each.label, "hashes of parameters");
  }
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
