// Ranks that do not all do the same: unused parameters, uneven batches, uneven numbers of batches.
#include "ranks/own_module/own_module.h"

namespace troika::test {
namespace {

using testing::HasSubstr;
using Unused = DataParallelOptions::Unused;

// Layers that may be left out.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    torch::manual_seed(1);
    common = register_module("common", torch::nn::Linear(6, 3));
    left = register_module("left", torch::nn::Linear(3, 3));
    right = register_module("right", torch::nn::Linear(3, 3));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x, bool go_left, bool go_right) {
    torch::Tensor y = common(x);
    if (go_left) y = left(y);
    if (go_right) y = right(torch::tanh(y));
    return y;
  }
  torch::nn::Linear common{nullptr}, left{nullptr}, right{nullptr};
};
TORCH_MODULE(Branches);

RANK_TEST(OwnModuleUneven, RefusesUnusedParametersByName, 1, 2, 3) {
  Branches module;
  DataParallel model(module, session_of(rank), small_buckets());
  const Samples own = Samples(6).slice(rank);
  const auto pass = [&](bool left, bool right) {
    module->zero_grad();
    squared_error(model(own.x, left, right), own.y).backward();
  };
  pass(true, true);
  const bool last = rank.index() + 1 == rank.size();
  const std::string one = usage_error_of([&] { pass(!last, true); });
  EXPECT_THAT(one, testing::HasSubstr("parameters 'left.weight', 'left.bias' got no gradient"));
  EXPECT_THAT(one, testing::EndsWith("on rank " + std::to_string(rank.size() - 1)));
  const std::string all = usage_error_of([&] { pass(true, false); });
  EXPECT_THAT(all, testing::HasSubstr("'right.weight', 'right.bias' got no gradient"));
  pass(true, true);  // and goes on
}

RANK_TEST(OwnModuleUneven, AllowsUnusedParametersWhenAsked, 1, 2, 3) {
  Branches module, alone;
  DataParallelOptions options = small_buckets();
  options.unused = Unused::kAllow;
  DataParallel model(module, session_of(rank), options);
  const Samples all(6);
  const std::int64_t count = 6 / rank.size();
  // Rank 0 leaves out `left`, all leave out `right`; then all take both.
  for (const bool both : {false, true, false}) {
    module->zero_grad();
    alone->zero_grad();
    const Samples own = all.slice(rank);
    squared_error(model(own.x, both || rank.index() > 0, both), own.y).backward();
    for (int other = 0; other < rank.size(); ++other) {
      const Samples theirs = all.slice(other * count, count);
      (squared_error(alone->forward(theirs.x, both || other > 0, both), theirs.y) / rank.size())
          .backward();
    }
    expect_same_gradients(*module, *alone);
    EXPECT_EQ(module->right->weight.grad().defined(), both);
  }
}

RANK_TEST(OwnModuleUneven, WeighsBySamples, 2, 3) {
  Mlp module, alone;
  DataParallel model(module, session_of(rank), small_buckets());
  for (std::uint64_t step = 0; step < 3; ++step) {
    // Rank r has r + 1 samples, in the second step none on rank 0.
    std::vector<std::int64_t> counts;
    for (int each = 0; each < rank.size(); ++each) counts.push_back(step == 1 ? each : each + 1);
    const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    const std::int64_t begin =
        std::accumulate(counts.begin(), counts.begin() + rank.index(), std::int64_t{0});
    const std::int64_t count = counts[static_cast<std::size_t>(rank.index())];
    const Samples all(total, step), own = all.slice(begin, count);
    module->zero_grad();
    alone->zero_grad();
    model.weigh(static_cast<double>(count));
    squared_error(model(own.x), own.y).backward();  // a NaN where there are no samples
    squared_error(alone(all.x), all.y).backward();
    expect_same_gradients(*module, *alone);
  }
  EXPECT_THAT(usage_error_of([&] { model.weigh(-1); }), testing::HasSubstr("number of samples"));
}

RANK_TEST(OwnModuleUneven, RefusesWeightsThatAreAllZero, 1, 2) {
  Mlp module, alone;
  DataParallel model(module, session_of(rank), small_buckets());
  const Samples all(6), own = all.slice(rank);
  for (int step = 0; step < 2; ++step) {
    module->zero_grad();
    model.weigh(0);
    EXPECT_THAT(usage_error_of([&] { squared_error(model(own.x), own.y).backward(); }),
                HasSubstr("every rank said weigh(0)"));
  }
  module->zero_grad();
  squared_error(model(own.x), own.y).backward();  // and goes on
  squared_error(alone(all.x), all.y).backward();
  expect_same_gradients(*module, *alone);
}

// Numbers of samples that would not fit into 16 bits: rank r has n, and n / 2 if r is 1.
void expect_weighed(Rank& rank, torch::Dtype dtype, std::shared_ptr<BucketHook> hook,
                    std::int64_t most, double bound) {
  Mlp module, alone;
  module->to(dtype);
  DataParallelOptions options = small_buckets();
  options.hook = std::move(hook);
  DataParallel model(module, session_of(rank), options);
  const std::int64_t fewer = most / 2;
  for (std::uint64_t step = 0; step < 2; ++step) {
    const Samples all(most + fewer, step);
    const Samples own = rank.index() == 0 ? all.slice(0, most) : all.slice(most, fewer);
    module->zero_grad();
    alone->zero_grad();
    model.weigh(static_cast<double>(own.x.size(0)));
    (100 * squared_error(model(own.x.to(dtype)).to(torch::kDouble), own.y)).backward();
    (100 * squared_error(alone(all.x), all.y)).backward();
    const auto wanted = alone->named_parameters();
    for (const auto& item : module->named_parameters()) {
      const torch::Tensor expected = wanted[item.key()].grad();
      EXPECT_LE(largest(item.value().grad().to(torch::kDouble) - expected),
                bound * largest(expected))
          << item.key();
    }
  }
}

RANK_TEST(OwnModuleUneven, WeighsHalfPrecision, 2) {
  expect_weighed(rank, torch::kHalf, nullptr, 8192, 0.05);
}

RANK_TEST(OwnModuleUneven, WeighsCompressedGradients, 2) {
  expect_weighed(rank, torch::kFloat, compress_to_fp16(), 8192, 0.005);
}

// Rank r has 2 r + 1 batches; the average is over those that have one.
void train_uneven(Rank& rank, bool with_step) {
  Mlp module, alone;
  DataParallel model(module, session_of(rank), small_buckets());
  const auto sgd = torch::optim::SGDOptions(0.1).momentum(with_step ? 0.9 : 0);
  torch::optim::SGD optimizer(module->parameters(), sgd), reference(alone->parameters(), sgd);
  for (int epoch = 0; epoch < 2; ++epoch) {
    const int own_batches = 2 * rank.index() + 1;
    for (int batch = 0; batch < own_batches; ++batch) {
      const Samples own = Samples(6, static_cast<std::uint64_t>(batch)).slice(rank);
      optimizer.zero_grad();
      squared_error(model(own.x), own.y).backward();
      optimizer.step();
    }
    with_step ? model.join([&] { optimizer.step(); }) : model.join();
    for (int batch = 0; batch < 2 * rank.size() - 1; ++batch) {
      const Samples all(6, static_cast<std::uint64_t>(batch));
      const int first = batch / 2 + batch % 2;  // of the ranks that have this batch
      const std::int64_t count = 6 / rank.size();
      reference.zero_grad();
      for (int other = first; other < rank.size(); ++other) {
        const Samples theirs = all.slice(other * count, count);
        (squared_error(alone(theirs.x), theirs.y) / (rank.size() - first)).backward();
      }
      reference.step();
    }
    expect_same_values(*module, *alone);
  }
}

RANK_TEST(OwnModuleUneven, JoinsWithTheOptimisersStep, 1, 2, 3) {
  train_uneven(rank, true);
}

RANK_TEST(OwnModuleUneven, JoinsWithoutOne, 2, 3) {
  train_uneven(rank, false);
}

// No rank has a batch; then one rank has none at all from the start.
RANK_TEST(OwnModuleUneven, JoinsWithoutAnyBatch, 2) {
  Mlp module, alone;
  DataParallel model(module, session_of(rank), small_buckets());
  torch::optim::SGD optimizer(module->parameters(), 0.1), reference(alone->parameters(), 0.1);
  int steps = 0;
  const auto step = [&] {
    ++steps;
    optimizer.step();
  };
  model.join(step);
  EXPECT_EQ(steps, 0);
  expect_same_values(*module, *alone, 0);
  const Samples batch(6);
  if (rank.index() == 1) {
    squared_error(model(batch.x), batch.y).backward();
    optimizer.step();
  }
  model.join(step);
  EXPECT_EQ(steps, rank.index() == 0 ? 1 : 0);
  squared_error(alone(batch.x), batch.y).backward();
  reference.step();
  expect_same_values(*module, *alone);
}

}  // namespace
}  // namespace troika::test
