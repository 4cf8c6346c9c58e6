// ZeRO 1 and 2 under DataParallel: the same bits as stage 0 whatever a training loop does, the
// memory that docs/zero.md promises, and errors for uses that cannot be right.
#include <troika/parallel/data_parallel/zero_redundancy_optimizer.h>
#include <troika/train/tensor_memory.h>

#include <map>
#include <set>

#include "ranks/own_module/own_module.h"

namespace troika::test {
namespace {

using testing::HasSubstr;
using Bits = std::map<std::string, torch::Tensor>;

// Sizes that no number of ranks divides, a matrix in another order of memory, batch-norm, a frozen
// and a shared parameter, three dtypes, and a layer that may be left out.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool several_dtypes) : several(several_dtypes) {
    torch::manual_seed(5);
    first = register_module("first", torch::nn::Linear(37, 111));
    norm = register_module("norm", torch::nn::BatchNorm1d(111));
    second = register_module("second", torch::nn::Linear(111, 59));
    turned = register_parameter("turned", torch::randn({59, 111}).t() / 20);
    scale = register_parameter("scale", torch::tensor(1.5));
    frozen = register_parameter("frozen", torch::ones({59}), /*requires_grad=*/false);
    spare = register_module("spare", torch::nn::Linear(59, 59));
    last = register_module("last", torch::nn::Linear(59, 3));
    again = register_module("again", last);
    if (!several) return;
    second->to(torch::kDouble);
    spare->to(torch::kBFloat16);
  }
  torch::Tensor forward(const torch::Tensor& x, bool take_spare = true) {
    torch::Tensor y = torch::tanh(norm(first(x)));
    y = second(y.to(second->weight.scalar_type())).to(torch::kFloat) + torch::mm(y, turned) +
        frozen;
    if (take_spare) y = y + spare(y.to(spare->weight.scalar_type())).to(torch::kFloat);
    return last(torch::tanh(y * scale)) + again(y);
  }
  bool several;
  torch::nn::Linear first{nullptr}, second{nullptr}, spare{nullptr}, last{nullptr}, again{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor turned, scale, frozen;
};
TORCH_MODULE(Net);

struct TrainingCase {
  bool several_dtypes = false;
  int accumulate = 1;  // passes a step
  bool weighed = false;
  bool leaves_out = false;  // rank 0 has no use of `spare`
  bool joins = false;       // rank 0 has a step less
  double clip = 0;
};

// All ranks together update every element once; at stage 0 each of them does.
void expect_cut(const DataParallel<Net>& model, int stage) {
  std::int64_t all = 0, own = 0;
  std::set<const void*> seen;  // shared ones have several names
  for (const auto& parameter : model.base_module()->parameters()) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (parameter.requires_grad()) all += parameter.numel();
  }
  for (const auto& shard : model.shards()) own += shard.numel();
  const double wanted = static_cast<double>(stage == 0 ? all * model.session().size() : all);
  EXPECT_EQ(model.session().sum(static_cast<double>(own), "own elements"), wanted);
  const double share = wanted / model.session().size();
  EXPECT_NEAR(static_cast<double>(own), share, 0.1 * share);
}

template <class Optimizer, class Options>
Bits bits_after(const Rank& rank, const Session& session, int stage, const TrainingCase& training,
                const Options& hyper) {
  Net net(training.several_dtypes);
  DataParallelOptions options;
  options.buckets = {.first_bytes = 1000, .bytes = 20000};
  options.zero_stage = stage;
  if (training.leaves_out) options.unused = DataParallelOptions::Unused::kAllow;
  DataParallel model(net, session, options);
  expect_cut(model, stage);
  ZeroRedundancyOptimizer<Optimizer> optimizer(model, hyper);
  const auto update = [&] {
    if (training.clip > 0) static_cast<void>(optimizer.clip_grad_norm(training.clip));
    optimizer.step();
  };
  const std::uint64_t steps = training.joins && rank.index() == 0 ? 2 : 3;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const std::int64_t count = training.weighed ? 2 + rank.index() : 4;
    const auto backward = [&](std::uint64_t pass) {
      const std::uint64_t seed = 1000 * (pass + 1) + 10 * step;
      const torch::Tensor x = doubles({count, 37}, seed + static_cast<std::uint64_t>(rank.index()));
      const torch::Tensor y = model(x.to(torch::kFloat), !training.leaves_out || rank.index() > 0);
      squared_error(y, torch::ones_like(y)).backward();
    };
    step % 2 == 0 ? optimizer.zero_grad() : optimizer.zero_grad(false);
    {
      const auto guard = model.no_sync();
      for (int pass = 1; pass < training.accumulate; ++pass) {
        backward(static_cast<std::uint64_t>(pass));
      }
    }
    if (training.weighed) model.weigh(static_cast<double>(count));
    backward(0);
    update();
  }
  if (training.joins) model.join(update);
  Bits bits;
  for (const auto& item : net->named_parameters()) bits[item.key()] = item.value().detach().clone();
  for (const auto& item : net->named_buffers()) bits[item.key()] = item.value().clone();
  return bits;
}

template <class Optimizer, class Options>
void expect_same_bits(const Rank& rank, const TrainingCase& training, const Options& hyper) {
  const Session session = session_of(rank);
  const Bits expected = bits_after<Optimizer>(rank, session, 0, training, hyper);
  for (const int stage : {1, 2}) {
    const Bits actual = bits_after<Optimizer>(rank, session, stage, training, hyper);
    for (const auto& [name, tensor] : expected) {
      EXPECT_TRUE(torch::equal(actual.at(name), tensor)) << "stage " << stage << ", " << name;
    }
  }
}

void expect_same_bits(const Rank& rank, const TrainingCase& training) {
  expect_same_bits<torch::optim::SGD>(
      rank, training, torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
  expect_same_bits<torch::optim::AdamW>(rank, training, torch::optim::AdamWOptions(0.01));
}

RANK_TEST(OwnModuleZero, GivesTheBitsOfStage0, 1, 2, 3, 4) {
  expect_same_bits(rank, {});
}

RANK_TEST(OwnModuleZero, GivesTheBitsOfStage0InSeveralDtypes, 2, 3) {
  expect_same_bits(rank, {.several_dtypes = true});
}

RANK_TEST(OwnModuleZero, GivesTheBitsOfStage0WhileAccumulating, 2, 3) {
  expect_same_bits(rank, {.accumulate = 3});
}

RANK_TEST(OwnModuleZero, GivesTheBitsOfStage0Weighed, 2, 3) {
  expect_same_bits(rank, {.weighed = true});
  expect_same_bits(rank, {.several_dtypes = true, .weighed = true});
}

RANK_TEST(OwnModuleZero, GivesTheBitsOfStage0WithUnusedParameters, 2, 3) {
  expect_same_bits(rank, {.leaves_out = true});
}

RANK_TEST(OwnModuleZero, ClipsTheNormOfTheModel, 2, 3) {
  // Squares are added up in another order.
  const Session session = session_of(rank);
  const auto sgd = torch::optim::SGDOptions(0.05);
  const TrainingCase training{.clip = 0.1};
  const Bits expected = bits_after<torch::optim::SGD>(rank, session, 0, training, sgd);
  const Bits free = bits_after<torch::optim::SGD>(rank, session, 0, {}, sgd);
  EXPECT_GT(largest(free.at("first.weight") - expected.at("first.weight")), 1e-4);
  for (const int stage : {1, 2}) {
    const Bits actual = bits_after<torch::optim::SGD>(rank, session, stage, training, sgd);
    for (const auto& [name, tensor] : expected) {
      EXPECT_TRUE(torch::allclose(actual.at(name), tensor, 1e-6, 1e-7)) << stage << ", " << name;
    }
  }
}

// BatchNorm's statistics are each rank's own.
RANK_TEST(OwnModuleZero, Joins, 2, 3) {
  expect_same_bits(rank, {.joins = true});
}

RANK_TEST(OwnModuleZero, UpdatesGroupsWithTheirOptions, 2, 3) {
  const Session session = session_of(rank);
  std::vector<torch::Tensor> expected;
  for (const int stage : {0, 1, 2}) {
    Net net(false);
    DataParallelOptions options;
    options.zero_stage = stage;
    DataParallel model(net, session, options);
    std::vector<torch::Tensor> decayed, others;
    for (const auto& item : net->named_parameters()) {
      // Frozen ones, which any optimiser of torch::optim takes, too.
      (item.value().dim() > 1 ? decayed : others).push_back(item.value());
    }
    using Group = torch::optim::OptimizerParamGroup;
    const std::vector<Group> groups = {
        Group(decayed, std::make_unique<torch::optim::AdamWOptions>(
                           torch::optim::AdamWOptions(0.01).weight_decay(0.5))),
        Group(others, std::make_unique<torch::optim::AdamWOptions>(
                          torch::optim::AdamWOptions(0.02).weight_decay(0)))};
    ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(model, groups,
                                                           torch::optim::AdamWOptions());
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      model(torch::ones({2, 37}) + torch::arange(2).unsqueeze(1)).sum().backward();
      optimizer.step();
    }
    const auto values = net->parameters();
    if (stage == 0) {
      for (const auto& value : values) expected.push_back(value.detach().clone());
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(torch::equal(values[i], expected[i])) << "stage " << stage << ", " << i;
    }
  }
}

RANK_TEST(OwnModuleZero, KeepsTheMemoryThatTheTablePromises, 2, 4) {
  count_tensor_memory(at::kCPU);
  const Session session = session_of(rank);
  constexpr std::int64_t kWidth = 300, kLayers = 8;
  constexpr double kY = kLayers * (kWidth * kWidth + kWidth);
  for (const int stage : {1, 2}) {
    const std::int64_t before = tensor_memory(at::kCPU).live_bytes;
    torch::nn::Sequential net;
    for (int i = 0; i < kLayers; ++i) net->push_back(torch::nn::Linear(kWidth, kWidth));
    DataParallelOptions options;
    options.zero_stage = stage;
    options.buckets = {.first_bytes = 1, .bytes = 4 * kWidth * kWidth};
    DataParallel model(net, session, options);
    ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(model, 1e-3);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      model(torch::ones({2, kWidth})).sum().backward();
      optimizer.step();
    }
    // Counted where tensors get memory: gradients, values and the optimiser's state, and nothing of
    // the module's own.
    const std::int64_t live = tensor_memory(at::kCPU).live_bytes - before;
    const double n = rank.size();
    const double promised = stage == 1 ? 8 * kY + 8 * kY / n : 4 * kY + 12 * kY / n;
    // Up to three buffers for a bucket's gradients.
    const double buffers = stage == 2 ? 3 * 4.0 * 2 * (kWidth * kWidth + kWidth) : 0;
    const auto measured = static_cast<double>(live);
    EXPECT_LT(model.memory_bytes(), live) << "stage " << stage;
    EXPECT_LE(measured, 1.05 * promised + buffers) << "stage " << stage;
    EXPECT_GE(measured, 0.95 * promised) << "stage " << stage;
    for (const auto& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
  }
}

RANK_TEST(OwnModuleZero, TakesWhatIsLoaded, 2) {
  for (const int stage : {1, 2}) {
    Mlp module(1), alone(7);
    DataParallelOptions options = small_buckets();
    options.zero_stage = stage;
    DataParallel model(module, session_of(rank), options);
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(model, 0.1);
    torch::optim::SGD reference(alone->parameters(), 0.1);
    const std::string path = rank.folder() / ("saved-" + std::to_string(rank.index()));
    torch::save(alone, path);
    torch::load(module, path);
    const Samples batch(6);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      reference.zero_grad();
      squared_error(model(batch.x), batch.y).backward();
      squared_error(alone(batch.x), batch.y).backward();
      optimizer.step();
      reference.step();
    }
    expect_same_values(*module, *alone);
  }
}

// Elementwise state of equal sizes on all ranks, so that only its name tells it apart.
RANK_TEST(OwnModuleZero, TakesItsOwnStateAndNoOther, 2) {
  using Optimizer = ZeroRedundancyOptimizer<torch::optim::AdamW>;
  const Session session = session_of(rank);
  const auto file = [&](int index) {
    return (rank.folder() / ("state-" + std::to_string(index))).string();
  };
  const std::string whole = (rank.folder() / ("whole-" + std::to_string(session.rank()))).string();
  torch::nn::Linear module(8, 8);
  DataParallelOptions options;
  options.zero_stage = 1;
  const auto step = [](auto& model, auto& optimizer) {
    optimizer.zero_grad();
    model(torch::ones({2, 8})).sum().backward();
    optimizer.step();
  };
  {
    DataParallel model(module, session, options);
    Optimizer optimizer(model, torch::optim::AdamWOptions(0.1));
    step(model, optimizer);
    torch::save(optimizer, file(session.rank()));
    session.barrier("saved");
    torch::load(optimizer, file(session.rank()));
    step(model, optimizer);
    const std::string other = std::to_string(1 - session.rank());
    EXPECT_THAT(usage_error_of([&] { torch::load(optimizer, file(1 - session.rank())); }),
                HasSubstr("optimiser of 'rank " + other + " of 2' cannot be loaded on rank " +
                          std::to_string(session.rank()) + " of 2"));
    step(model, optimizer);
  }
  {
    torch::nn::Sequential larger(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8));
    DataParallel model(larger, session, options);
    Optimizer optimizer(model, torch::optim::AdamWOptions(0.1));
    EXPECT_THAT(usage_error_of([&] { torch::load(optimizer, file(session.rank())); }),
                HasSubstr("its parameters are cut otherwise"));
  }
  {
    DataParallel model(module, session);
    Optimizer optimizer(model, torch::optim::AdamWOptions(0.1));
    step(model, optimizer);
    EXPECT_THAT(usage_error_of([&] { torch::load(optimizer, file(session.rank())); }),
                HasSubstr("cannot be loaded where parameters are whole"));
    torch::save(optimizer, whole);
  }
  DataParallel model(module, session, options);
  Optimizer optimizer(model, torch::optim::AdamWOptions(0.1));
  EXPECT_THAT(usage_error_of([&] { torch::load(optimizer, whole); }),
              HasSubstr("state of an optimiser of whole parameters cannot be loaded on rank"));
}

RANK_TEST(OwnModuleZero, RefusesWhatCannotBeRight, 2) {
  const Session session = session_of(rank);
  const Samples batch(6);
  DataParallelOptions options = small_buckets();
  const auto make = [&] {
    Mlp module;
    const DataParallel model(module, session, options);
  };
  options.zero_stage = 3;
  EXPECT_THAT(usage_error_of(make), HasSubstr("zero_stage = 3: DataParallel has 0 to 2"));
  EXPECT_THAT(usage_hint_of(make), HasSubstr("name the module's units in a troika::Module"));
  options.zero_stage = 9;
  EXPECT_THAT(usage_error_of(make), HasSubstr("zero_stage = 9: there are 0 to 3"));
  EXPECT_THAT(usage_hint_of(make), HasSubstr("take 0, 1 or 2 in DataParallel"));
  options.zero_stage = 1;
  options.hook = compress_to_bf16();
  EXPECT_THAT(usage_error_of(make), HasSubstr("zero_stage = 1 with a hook"));
  options.hook = nullptr;
  for (const int stage : {1, 2}) {
    options.zero_stage = stage;
    Mlp module;
    DataParallel model(module, session, options);
    const auto backward = [&] { squared_error(model(batch.x), batch.y).backward(); };
    EXPECT_THAT(usage_error_of(backward),
                HasSubstr("without a troika::ZeroRedundancyOptimizer: parameter 'first.weight'"));
    module->zero_grad();
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(model, 0.1);
    backward();
    EXPECT_THAT(usage_error_of(backward), HasSubstr("that the optimiser has not used"));
    {
      const auto guard = model.no_sync();  // at stage 1 the averages are where its sums would be
      EXPECT_THAT(usage_error_of(backward), HasSubstr("that the optimiser has not used"));
    }
    optimizer.zero_grad();
    backward();
    optimizer.step();
    EXPECT_THAT(usage_error_of([&] { model.join(); }), HasSubstr("without the optimiser's step"));
    EXPECT_THAT(usage_error_of([&] { (void)model.shards_of({torch::ones({2})}); }),
                HasSubstr("no trained parameter of the module"));
    // A step between forward and backward.
    const torch::Tensor loss = squared_error(model(batch.x), batch.y);
    optimizer.step();
    EXPECT_THAT(usage_error_of([&] { loss.backward(); }),
                HasSubstr("was written to between forward and backward"));
  }
}

// 128 elements, of which ranks 1 and 3 update 64 each, and ranks 0 and 2 none.
RANK_TEST(OwnModuleZero, RefusesASecondAverageOnRanksWithoutAShard, 4) {
  for (const int stage : {1, 2}) {
    const torch::nn::Linear net(8, 8);
    DataParallelOptions options;
    options.zero_stage = stage;
    DataParallel model(net, session_of(rank), options);
    EXPECT_EQ(model.shards().empty(), rank.index() % 2 == 0);
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(model, 0.1);
    const auto backward = [&] { model(torch::ones({2, 8})).sum().backward(); };
    backward();
    EXPECT_THAT(usage_error_of(backward), HasSubstr("that the optimiser has not used"));
    optimizer.zero_grad();
    backward();
    optimizer.step();
    backward();
  }
}

// The step gathers values, so that ranks have the same ones: a mixture.
RANK_TEST(OwnModuleZero, FindsAWriteOnOneRankBeforeTheStep, 2) {
  const Samples batch(6);
  for (const int stage : {1, 2}) {
    Mlp module;
    DataParallelOptions options = small_buckets();
    options.zero_stage = stage;
    DataParallel model(module, session_of(rank), options);
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(model, 0.1);
    const auto step = [&](bool writes) {
      optimizer.zero_grad();
      squared_error(model(batch.x), batch.y).backward();
      if (writes) {
        const torch::NoGradGuard no_grad;
        module->second->weight.mul_(0.5);
      }
      optimizer.step();
    };
    step(true);  // on all ranks
    step(false);
    step(rank.index() == 1);
    // A pass in sixteen does not see it.
    EXPECT_THAT(usage_error_of([&] {
                  step(false);
                  step(false);
                }),
                HasSubstr("parameter 'second.weight' was written to on some ranks only before"));
    model.broadcast_from(0);
    step(false);
    step(false);
  }
}

RANK_TEST(OwnModuleZero, LetsGoOfTheModuleWithTheModel, 2) {
  const Samples batch(6);
  for (const int stage : {0, 1, 2}) {
    Mlp module;
    DataParallelOptions options = small_buckets();
    options.zero_stage = stage;
    auto first = std::make_unique<DataParallel<Mlp>>(module, session_of(rank), options);
    ZeroRedundancyOptimizer<torch::optim::SGD> outlives(*first, 0.1);
    squared_error((*first)(batch.x), batch.y).backward();
    outlives.step();
    first.reset();
    DataParallel second(module, session_of(rank), options);
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(second, 0.1);
    optimizer.zero_grad();
    squared_error(second(batch.x), batch.y).backward();
    optimizer.step();
    if (stage == 0) continue;
    EXPECT_THAT(usage_error_of([&] { outlives.step(); }),
                HasSubstr("ZeroRedundancyOptimizer whose DataParallel is gone"));
  }
}

}  // namespace
}  // namespace troika::test
