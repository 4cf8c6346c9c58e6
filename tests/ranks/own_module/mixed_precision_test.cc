// Autocast and GradScaler under DataParallel: ranks that overflow alone skip together, at every
// stage of ZeRO, and accumulation and clipping see the gradients that they would without a scale.
#include <troika/nn/autocast.h>
#include <troika/nn/sync_batch_norm.h>
#include <troika/parallel/data_parallel/grad_scaler.h>
#include <troika/parallel/data_parallel/zero_redundancy_optimizer.h>

#include <limits>
#include <map>
#include <optional>
#include <string>

#include "ranks/own_module/own_pipeline.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// In fp32, with a layer of its own for each of several buckets and shards.
struct NetworkImpl : torch::nn::Module {
  explicit NetworkImpl(std::uint64_t seed = 1) {
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(16, 96));
    second = register_module("second", torch::nn::Linear(96, 96));
    third = register_module("third", torch::nn::Linear(96, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return third(torch::gelu(second(torch::gelu(first(x)))));
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};
TORCH_MODULE(Network);

DataParallelOptions stage_options(int stage) {
  DataParallelOptions options;
  options.buckets = {.first_bytes = 1000, .bytes = 20000};
  options.zero_stage = stage;
  return options;
}

Samples floats(std::int64_t count, std::uint64_t step) {
  const Samples samples(count, step, {16}, 4);
  return {samples.x.to(torch::kFloat), samples.y.to(torch::kFloat)};
}

std::vector<torch::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> values;
  for (const auto& each : module.parameters()) values.push_back(each.detach().clone());
  return values;
}

void expect_same_bits(const std::vector<torch::Tensor>& actual,
                      const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
  }
}

void expect_same_bits_on_all_ranks(const Session& session, const torch::nn::Module& module) {
  for (const torch::Tensor& value : values_of(module)) {
    torch::Tensor most = value.clone(), least = value.clone();
    session.world().all_reduce(most, ReduceOp::kMax, session.call("most")).wait();
    session.world().all_reduce(least, ReduceOp::kMin, session.call("least")).wait();
    EXPECT_TRUE(torch::equal(most, least));
  }
}

struct FloatLoop {
  FloatLoop(const Session& session, int stage, const GradScalerOptions& options)
      : model(net, session, stage_options(stage)),
        optimizer(model, torch::optim::AdamWOptions(0.01)),
        scaler(model, options) {}
  // A pass of this rank's batch, whose loss is multiplied by `factor`.
  void backward(const Samples& batch, at::ScalarType dtype, float factor = 1) {
    torch::Tensor loss;
    {
      const Autocast autocast(dtype, at::kCPU);
      loss = squared_error(model(batch.x), batch.y);
    }
    scaler.scale(loss * factor).backward();
  }
  bool step() {
    const bool stepped = scaler.step(optimizer);
    scaler.update();
    return stepped;
  }
  Network net;
  DataParallel<Network> model;
  ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer;
  GradScaler scaler;
};

// Without zero_grad() after a step that was left out: its average counts as used, also with ZeRO.
RANK_TEST(MixedPrecision, RanksThatOverflowAloneSkipTogether, 1, 2, 3) {
  const Session session = session_of(rank);
  for (const int stage : {0, 1, 2}) {
    FloatLoop loop(session, stage, {.initial_scale = 1024, .growth_interval = 2});
    std::vector<torch::Tensor> before = values_of(*loop.net);
    std::vector<double> scales;
    for (std::uint64_t step = 0; step < 5; ++step) {
      const bool overflows = (step == 1 || step == 2) && rank.index() == rank.size() - 1;
      loop.net->zero_grad();
      // Finite in fp32, and past the largest fp16 once it is scaled.
      loop.backward(floats(4, 10 * step + static_cast<std::uint64_t>(rank.index())), at::kHalf,
                    overflows ? 1e30F : 1);
      EXPECT_EQ(loop.step(), step != 1 && step != 2) << "stage " << stage << ", step " << step;
      scales.push_back(loop.scaler.scale_value());
      std::vector<torch::Tensor> after = values_of(*loop.net);
      EXPECT_EQ(torch::equal(before[0], after[0]), step == 1 || step == 2);
      if (step == 1 || step == 2) expect_same_bits(after, before);
      before = std::move(after);
      expect_same_bits_on_all_ranks(session, *loop.net);
    }
    EXPECT_EQ(scales, (std::vector<double>{1024, 512, 256, 256, 512}));
  }
}

// What overflows lies in the shard of one rank only, with ZeRO: the others' gradients are finite.
RANK_TEST(MixedPrecision, AnOverflowInOneShardIsEveryonesOverflow, 2, 3) {
  const Session session = session_of(rank);
  for (const int stage : {1, 2}) {
    for (const char* name : {"first.weight", "third.bias"}) {
      FloatLoop loop(session, stage, {});
      const std::vector<torch::Tensor> before = values_of(*loop.net);
      torch::Tensor parameter = loop.net->named_parameters()[name];
      parameter.register_hook([](const torch::Tensor& gradient) {
        torch::Tensor changed = gradient.clone();
        changed.view({-1})[0] = kInfinity;
        return changed;
      });
      loop.backward(floats(4, static_cast<std::uint64_t>(rank.index())), at::kHalf);
      double finite = 1;
      for (const auto& shard : loop.model.shards()) {
        if (!torch::isfinite(shard.grad()).all().item<bool>()) finite = 0;
      }
      EXPECT_EQ(session.sum(finite, "finite"), rank.size() - 1);
      EXPECT_FALSE(loop.step());
      expect_same_bits(values_of(*loop.net), before);
    }
  }
}

std::vector<torch::Tensor> values_after(const Rank& rank, const Session& session, int stage,
                                        at::ScalarType dtype) {
  FloatLoop loop(session, stage, {.initial_scale = 4096, .growth_interval = 2});
  for (std::uint64_t step = 0; step < 5; ++step) {
    loop.optimizer.zero_grad();
    const auto batch = [&](std::uint64_t pass) {
      return floats(4, 100 * pass + 10 * step + static_cast<std::uint64_t>(rank.index()));
    };
    {
      const auto guard = loop.model.no_sync();
      loop.backward(batch(1), dtype);
      loop.backward(batch(2), dtype, step == 3 && rank.index() == 0 ? kInfinity : 1);
    }
    loop.backward(batch(3), dtype);
    loop.scaler.unscale_(loop.optimizer);
    EXPECT_EQ(loop.step(), step != 3);
  }
  EXPECT_EQ(loop.scaler.state(), (GradScaler::State{4096, 1}));
  return values_of(*loop.net);
}

RANK_TEST(MixedPrecision, ZeroGivesTheBitsOfStage0, 2, 3) {
  const Session session = session_of(rank);
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const auto expected = values_after(rank, session, 0, dtype);
    for (const int stage : {1, 2}) {
      expect_same_bits(values_after(rank, session, stage, dtype), expected);
    }
  }
}

// Powers of two cancel, so that fp64 has no excuse.
RANK_TEST(MixedPrecision, AccumulatesAndClipsAsWithoutAScale, 1, 2) {
  const Session session = session_of(rank);
  constexpr double kClip = 0.05;
  for (const int stage : {0, 1, 2}) {
    Mlp module, alone;
    DataParallelOptions options = small_buckets();
    options.zero_stage = stage;
    DataParallel model(module, session, options);
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(model, 0.5);
    torch::optim::SGD reference(alone->parameters(), 0.5);
    GradScaler scaler(model, {.growth_interval = 1});
    for (std::uint64_t step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      reference.zero_grad();
      for (std::uint64_t pass = 0; pass < 3; ++pass) {
        const Samples batch(6, 10 * step + pass);
        const Samples own = batch.slice(rank);
        const auto backward = [&] {
          scaler.scale(squared_error(model(own.x), own.y) / 3).backward();
        };
        if (pass < 2) {
          const auto guard = model.no_sync();
          backward();
        } else {
          backward();
        }
        (squared_error(alone(batch.x), batch.y) / 3).backward();
      }
      scaler.unscale_(optimizer);
      const double norm = optimizer.clip_grad_norm(kClip);
      const double expected = torch::nn::utils::clip_grad_norm_(alone->parameters(), kClip);
      EXPECT_GT(expected, kClip);
      EXPECT_NEAR(norm, expected, 1e-12 * expected);
      EXPECT_TRUE(scaler.step(optimizer));
      scaler.update();
      reference.step();
    }
    EXPECT_EQ(scaler.scale_value(), 8 * 65536);
    expect_same_values(*module, *alone, 1e-7);  // clip_grad_norm_() of LibTorch adds 1e-6
  }
}

// Each rank computes with rounded weights and activations, and adds gradients up in fp32.
RANK_TEST(MixedPrecision, ManyRanksAreOneRankUpToRounding, 2) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    Network net, alone;
    const Session session = session_of(rank);
    DataParallel model(net, session, stage_options(0));
    torch::optim::SGD optimizer(net->parameters(), 0.1), reference(alone->parameters(), 0.1);
    for (std::uint64_t step = 0; step < 10; ++step) {
      const Samples batch = floats(8, step);
      const auto train = [&](auto& network, torch::optim::SGD& update, const Samples& samples) {
        update.zero_grad();
        torch::Tensor loss;
        {
          const Autocast autocast(dtype, at::kCPU);
          const torch::Tensor output = network(samples.x);
          EXPECT_EQ(output.scalar_type(), dtype);
          loss = squared_error(output, samples.y);
        }
        loss.backward();
        update.step();
      };
      train(model, optimizer, batch.slice(rank));
      train(alone, reference, batch);
    }
    const auto ours = net->parameters(), theirs = alone->parameters();
    const double unit = dtype == at::kHalf ? 1.0 / 1024 : 1.0 / 128;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].grad().scalar_type(), at::kFloat);
      EXPECT_LE(largest(ours[i] - theirs[i]), unit * largest(theirs[i])) << i;
    }
    expect_same_bits_on_all_ranks(session, *net);
  }
}

// Casts are kept for as long as a guard lives. Here that is the whole loop.
RANK_TEST(MixedPrecision, AGuardAroundTheLoopDoesNotTrainOldWeights, 2) {
  const Session session = session_of(rank);
  for (const int stage : {0, 1, 2}) {
    const auto train = [&](bool around) {
      Network net;
      DataParallel model(net, session, stage_options(stage));
      ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(model, 0.1);
      std::optional<Autocast> outer;
      if (around) outer.emplace(at::kBFloat16, at::kCPU);
      for (std::uint64_t step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        const Autocast inner(at::kBFloat16, at::kCPU);
        const Samples batch = floats(4, step);
        squared_error(model(batch.x), batch.y).backward();
        optimizer.step();
      }
      return values_of(*net);
    };
    expect_same_bits(train(true), train(false));
  }
}

// Statistics in fp32, whatever the convolutions before them compute in.
RANK_TEST(MixedPrecision, SynchronisesBatchNorm, 2) {
  const Session session = session_of(rank);
  const auto train = [&](std::optional<at::ScalarType> dtype) {
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Conv2d(3, 8, 3), SyncBatchNorm(8, session),
                              torch::nn::ReLU(), torch::nn::Conv2d(8, 2, 3));
    DataParallel model(net, session);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const torch::Tensor images =
          doubles({2, 3, 8, 8}, 10 * step + static_cast<std::uint64_t>(rank.index()))
              .to(torch::kFloat);
      optimizer.zero_grad();
      torch::Tensor loss;
      {
        std::optional<Autocast> autocast;
        if (dtype) autocast.emplace(*dtype, at::kCPU);
        loss = model(images).to(torch::kFloat).square().mean();
      }
      loss.backward();
      optimizer.step();
    }
    std::vector<torch::Tensor> values = values_of(*net);
    for (const auto& buffer : net->buffers()) values.push_back(buffer.to(torch::kFloat));
    return values;
  };
  const std::vector<torch::Tensor> exact = train(std::nullopt);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const std::vector<torch::Tensor> cast = train(dtype);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      EXPECT_LE(largest(cast[i] - exact[i]), 0.05 * largest(exact[i])) << i;
    }
  }
}

// A unit that computes in bf16, and hands on fp32.
struct CastUnitImpl : torch::nn::Module {
  CastUnitImpl(std::int64_t in, std::int64_t out, std::uint64_t seed) {
    torch::manual_seed(seed);
    linear = register_module("linear", torch::nn::Linear(in, out));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const Autocast autocast(at::kBFloat16, at::kCPU);
    return torch::gelu(linear(x)).to(torch::kFloat);
  }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(CastUnit);

RANK_TEST(MixedPrecision, UnitsOfAPipelineCast, 2) {
  const std::vector<NamedUnit> units = {unit("first", [] { return CastUnit(16, 32, 1); }, {32}),
                                        unit("second", [] { return CastUnit(32, 32, 2); }, {32}),
                                        unit("third", [] { return CastUnit(32, 4, 3); }, {4})};
  const Samples all = floats(8, 1);
  CastUnit first(16, 32, 1), second(32, 32, 2), third(32, 4, 3);
  const torch::Tensor loss = loss_sum(third(second(first(all.x))), all.y) / 8;
  loss.backward();
  const std::map<std::string, torch::Tensor> expected = {
      {"first.linear.weight", first->linear->weight.grad()},
      {"second.linear.weight", second->linear->weight.grad()},
      {"third.linear.weight", third->linear->weight.grad()}};
  for (const int pipeline : {1, 2}) {
    for (const int stage : {0, 3}) {
      ModulePipelineOptions options;
      options.microbatches = 2;
      options.zero_stage = stage;
      ModulePipeline model(units, loss_sum, groups_over(rank, pipeline), options);
      const Samples own = slice_of(all, model);
      const double mean = model.train(own.x, own.y);
      EXPECT_NEAR(mean, loss.item<double>(), 0.01 * loss.item<double>());
      for (const ParameterShard& shard : model.shards()) {
        if (!expected.contains(shard.name)) continue;
        const torch::Tensor& wanted = expected.at(shard.name);
        const auto slice = wanted.reshape({-1}).narrow(0, shard.begin, shard.tensor.numel());
        EXPECT_LE(largest(shard.tensor.grad() - slice), 0.02 * largest(wanted)) << shard.name;
      }
    }
  }
}

RANK_TEST(MixedPrecision, RanksThatJoinedKeepTheScale, 2, 3) {
  const Session session = session_of(rank);
  for (const int stage : {0, 1, 2}) {
    FloatLoop loop(session, stage, {.initial_scale = 1024, .growth_interval = 2});
    EXPECT_THAT(usage_error_of([&] { loop.model.join(); }),
                HasSubstr("join() without the optimiser's step, with a GradScaler"));
    const std::uint64_t steps = rank.index() == 0 ? 1 : 5;
    for (std::uint64_t step = 0; step < steps; ++step) {
      loop.optimizer.zero_grad();
      const Samples batch = floats(4, 10 * step + static_cast<std::uint64_t>(rank.index()));
      loop.backward(batch, at::kHalf, step == 3 ? kInfinity : 1);
      EXPECT_EQ(loop.step(), step != 3);
    }
    loop.model.join([&] { loop.step(); });
    EXPECT_EQ(loop.scaler.state(), (GradScaler::State{1024, 1}));
    expect_same_bits_on_all_ranks(session, *loop.net);
  }
}

RANK_TEST(MixedPrecision, TakesOneSmallCollectiveAStep, 2) {
  FloatLoop loop(session_of(rank), 0, {});
  const Group& world = loop.model.session().world();
  loop.backward(floats(4, 1), at::kHalf);
  const std::uint64_t before = world.input_bytes();
  loop.scaler.unscale_(loop.optimizer);
  EXPECT_EQ(world.input_bytes(), before);
  loop.step();
  EXPECT_EQ(world.input_bytes() - before, 7 * sizeof(double));
}

RANK_TEST(MixedPrecision, ScalesThatDifferAreAnErrorOnAllRanks, 3) {
  const Session session = session_of(rank);
  FloatLoop loop(session, 1, {.initial_scale = rank.index() == 2 ? 512.0 : 1024.0});
  const std::vector<torch::Tensor> before = values_of(*loop.net);
  loop.backward(floats(4, 1), at::kHalf);
  EXPECT_EQ(usage_error_of([&] { loop.scaler.step(loop.optimizer); }),
            "gradient scalers differ between ranks: scale 1024 after 0 good steps on rank 0, scale "
            "512 after 0 good steps on rank 2");
  expect_same_bits(values_of(*loop.net), before);
  loop.scaler.load({1024, rank.index() == 1 ? 5 : 0});
  loop.optimizer.zero_grad();
  loop.backward(floats(4, 1), at::kHalf);
  EXPECT_THAT(usage_error_of([&] { loop.scaler.step(loop.optimizer); }),
              HasSubstr("scale 1024 after 5 good steps on rank 1"));
  loop.scaler.load({1024, 0});
  loop.optimizer.zero_grad();
  loop.backward(floats(4, 1), at::kHalf);
  EXPECT_TRUE(loop.step());
}

RANK_TEST(MixedPrecision, FailsOnAllRanksBelowTheSmallestScale, 2) {
  FloatLoop loop(session_of(rank), 0, {.initial_scale = 4, .minimum_scale = 2});
  const auto step = [&] {
    loop.optimizer.zero_grad();
    loop.backward(floats(4, 1), at::kHalf, rank.index() == 1 ? kInfinity : 1);
    EXPECT_FALSE(loop.step());
  };
  step();
  EXPECT_THROW(step(), NonFiniteError);
}

// Ranks that have no shard at all have no gradients either: they are no error alone.
RANK_TEST(MixedPrecision, RanksWithoutAShardTakePart, 4) {
  for (const int stage : {1, 2}) {
    const torch::nn::Linear net(8, 8);
    DataParallelOptions options;
    options.zero_stage = stage;
    DataParallel model(net, session_of(rank), options);
    EXPECT_EQ(model.shards().empty(), rank.index() % 2 == 0);
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(model, 0.1);
    GradScaler scaler(model);
    scaler.scale(model(torch::ones({2, 8})).sum()).backward();
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
    optimizer.zero_grad();
    (void)scaler.scale(torch::ones({}));
    EXPECT_THAT(usage_error_of([&] { scaler.step(optimizer); }),
                HasSubstr("whose parameters have no gradients"));
  }
}

}  // namespace
}  // namespace troika::test
