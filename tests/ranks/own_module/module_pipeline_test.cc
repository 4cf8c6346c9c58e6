// A row of units of the user's own on pipeline and data ranks: the gradients of one process under
// every schedule, the same bits at every stage of ZeRO, and the memory that docs/zero.md promises.
#include <troika/param/arena_layout.h>
#include <troika/train/tensor_memory.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "ranks/own_module/own_pipeline.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

// Two steps of SGD with momentum, gradients and losses against one process.
void expect_one_process(const PipelineGroups& groups, const ModulePipelineOptions& options) {
  const std::vector<std::int64_t> shape = {2, 6, 6};
  ModulePipeline model(small_net(), loss_sum, groups, options);
  SingleProcessNet alone;
  std::vector<torch::Tensor> theirs;
  for (const auto& [name, tensor] : alone.parameters) theirs.push_back(tensor);
  const auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9);
  torch::optim::SGD optimizer(model.parameters(), sgd), reference(theirs, sgd);
  const std::string what = options.schedule + ", stage " + std::to_string(options.zero_stage);
  for (std::uint64_t step = 0; step < 2; ++step) {
    const Samples all(11, step, shape), own = slice_of(all, model);  // uneven
    reference.zero_grad();
    const torch::Tensor loss = alone.loss(all);
    loss.backward();
    EXPECT_NEAR(model.evaluate(own.x, own.y), loss.item<double>(), 1e-12) << what;
    EXPECT_NEAR(model.train(own.x, own.y), loss.item<double>(), 1e-12) << what;
    for (const ParameterShard& shard : model.shards()) {
      const torch::Tensor wanted = alone.parameters.at(shard.name)
                                       .grad()
                                       .reshape({-1})
                                       .narrow(0, shard.begin, shard.tensor.numel());
      EXPECT_LE(largest(shard.tensor.grad() - wanted), 1e-12 * largest(wanted) + 1e-14)
          << what << ", " << shard.name;
    }
    optimizer.step();
    reference.step();
  }
  std::size_t seen = 0;
  model.each_value([&](const std::string& name, const torch::Tensor& value) {
    ++seen;
    EXPECT_LE(largest(value - alone.parameters.at(name)), 1e-12) << what << ", " << name;
  });
  EXPECT_GE(seen, 2);
}

RANK_TEST(ModulePipeline, TrainsAsOneProcessUnderEverySchedule, 2, 4) {
  for (const int pipeline : {1, 2, 4}) {
    if (pipeline > rank.size()) continue;
    const PipelineGroups groups = groups_over(rank, pipeline);
    for (const char* schedule :
         {"gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v"}) {
      ModulePipelineOptions options = doubles_in(schedule, 4);
      if (options.schedule == "interleaved-1f1b") options.virtual_stages = 2;
      if (options.schedule == "zb-v") options.virtual_stages = 1;  // means its two, as in a recipe
      expect_one_process(groups, options);
    }
  }
}

RANK_TEST(ModulePipeline, TrainsAsOneProcessAtEveryStage, 2, 3, 4) {
  for (const int pipeline : {1, 2}) {
    if (rank.size() % pipeline != 0) continue;
    const PipelineGroups groups = groups_over(rank, pipeline);
    for (const int stage : {0, 1, 2, 3}) {
      for (const int microbatches : {1, 3}) {
        ModulePipelineOptions options = doubles_in("1f1b", microbatches);
        options.zero_stage = stage;
        expect_one_process(groups, options);
      }
      ModulePipelineOptions options = doubles_in("zb-v", 2);
      options.zero_stage = stage;
      expect_one_process(groups, options);
    }
  }
}

RANK_TEST(ModulePipeline, TrainsAsOneProcessWhereEachMicrobatchIsCut, 2, 4) {
  for (const int pipeline : {1, 2}) {
    const PipelineGroups groups = groups_over(rank, pipeline);
    for (const int stage : {2, 3}) {
      for (const char* schedule : {"gpipe", "1f1b", "interleaved-1f1b"}) {
        ModulePipelineOptions options = doubles_in(schedule, 4);
        options.zero_stage = stage;
        options.cut_gradients = CutGradients::kEachMicrobatch;
        if (options.schedule == "interleaved-1f1b") options.virtual_stages = 2;
        expect_one_process(groups, options);
      }
    }
  }
}

// Several chunks of elements a matrix, uneven, fp32, with dropout and batch-norm.
struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t in, std::int64_t out) {
    torch::manual_seed(static_cast<std::uint64_t>(in));
    linear = register_module("linear", torch::nn::Linear(in, out));
    norm = register_module("norm", torch::nn::BatchNorm1d(out));
    frozen = register_parameter("frozen", torch::full({out}, 0.5), /*requires_grad=*/false);
    shared = register_module("shared", linear);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::dropout(torch::tanh(norm(linear(x))) + frozen, 0.25, is_training());
  }
  torch::nn::Linear linear{nullptr}, shared{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor frozen;
};
TORCH_MODULE(Block);

std::vector<NamedUnit> wide_net() {
  return {unit("a", [] { return Block(100, 301); }, {301}),
          unit("b", [] { return Block(301, 157); }, {157}),
          unit("c", [] { return Block(157, 3); }, {3})};
}

using Bits = std::map<std::string, torch::Tensor>;

template <class Optimizer, class Options>
Bits bits_after_training(const Rank& rank, const PipelineGroups& groups,
                         const ModulePipelineOptions& options, const Options& hyper,
                         const std::vector<NamedUnit>& net) {
  ModulePipeline model(net, loss_sum, groups, options);
  Optimizer optimizer(model.parameters(), hyper);
  torch::manual_seed(77 + static_cast<std::uint64_t>(rank.index()));  // masks
  Bits bits;
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Samples all(24, step, {100});
    const Samples own = slice_of({all.x.to(torch::kFloat), all.y.to(torch::kFloat)}, model);
    optimizer.zero_grad();
    bits["loss " + std::to_string(step)] = torch::tensor(model.train(own.x, own.y));
    bits["norm " + std::to_string(step)] = torch::tensor(model.clip_grad_norm(0.3));
    optimizer.step();
  }
  model.each_value(
      [&](const std::string& name, const torch::Tensor& value) { bits[name] = value.clone(); });
  return bits;
}

void expect_same(const Bits& actual, const Bits& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(torch::equal(actual.at(name), tensor)) << what << ", " << name;
  }
}

RANK_TEST(ModulePipeline, GivesTheSameBitsAtEveryStage, 2, 3, 4) {
  const PipelineGroups groups = groups_over(rank, 1);
  const auto train = [&](int stage, int microbatches, Recompute recompute, bool adam) {
    ModulePipelineOptions options;
    options.zero_stage = stage;
    options.microbatches = microbatches;
    options.recompute = recompute;
    if (adam) {
      return bits_after_training<torch::optim::AdamW>(
          rank, groups, options, torch::optim::AdamWOptions(0.01).weight_decay(0.1), wide_net());
    }
    return bits_after_training<torch::optim::SGD>(
        rank, groups, options, torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01),
        wide_net());
  };
  for (const int microbatches : {1, 2}) {
    for (const bool adam : {false, true}) {
      const Bits expected = train(0, microbatches, Recompute::kNone, adam);
      expect_same(train(0, microbatches, Recompute::kUnits, adam), expected, "recomputed");
      for (const int stage : {1, 2, 3}) {
        expect_same(train(stage, microbatches, Recompute::kNone, adam), expected,
                    "stage " + std::to_string(stage));
      }
    }
  }
}

// Units enough for two virtual stages on each of two ranks.
std::vector<NamedUnit> deep_net() {
  return {
      unit("a", [] { return Block(100, 60); }, {60}), unit("b", [] { return Block(60, 50); }, {50}),
      unit("c", [] { return Block(50, 40); }, {40}), unit("d", [] { return Block(40, 30); }, {30}),
      unit("e", [] { return Block(30, 3); }, {3})};
}

// A backward pass repeats the draws of its own microbatch's forward pass, while those of others
// come between: every unit has masks.
RANK_TEST(ModulePipeline, RepeatsTheDrawsOfEveryMicrobatchInFlight, 2, 4) {
  const PipelineGroups groups = groups_over(rank, 2);
  for (const char* schedule : {"gpipe", "1f1b", "interleaved-1f1b", "zb-h2", "zb-v"}) {
    const auto train = [&](Recompute recompute, int stage) {
      ModulePipelineOptions options;
      options.schedule = schedule;
      if (options.schedule == "interleaved-1f1b") options.virtual_stages = 2;
      options.microbatches = 4;
      options.recompute = recompute;
      options.zero_stage = stage;
      return bits_after_training<torch::optim::SGD>(
          rank, groups, options, torch::optim::SGDOptions(0.05).momentum(0.9), deep_net());
    };
    const Bits kept = train(Recompute::kNone, 0);
    const std::string what = schedule;
    expect_same(train(Recompute::kUnits, 0), kept, what + ", recomputed");
    expect_same(train(Recompute::kNone, 3), kept, what + ", stage 3");  // which recomputes
  }
}

// docs/zero.md: Y parameters in fp32 with AdamW.
double promised_bytes(int stage, double y, double n) {
  return std::array{16 * y, 8 * y + 8 * y / n, 4 * y + 12 * y / n,
                    16 * y / n}[static_cast<std::size_t>(stage)];
}

constexpr std::int64_t kWidth = 400, kUnits = 6;

RANK_TEST(ModulePipeline, KeepsTheMemoryThatTheTablePromises, 2, 4) {
  count_tensor_memory(at::kCPU);
  const PipelineGroups groups = groups_over(rank, 1);
  for (const int stage : {0, 1, 2, 3}) {
    std::vector<NamedUnit> units;
    for (std::int64_t i = 0; i < kUnits; ++i) {
      units.push_back(
          unit(std::to_string(i), [] { return torch::nn::Linear(kWidth, kWidth); }, {kWidth}));
    }
    const std::int64_t before = tensor_memory(at::kCPU).live_bytes;
    ModulePipelineOptions options;
    options.zero_stage = stage;
    options.buckets = {.first_bytes = 1, .bytes = 1};  // one of each unit
    ModulePipeline model(units, loss_sum, groups, options);
    // What the modules had themselves is gone.
    constexpr std::int64_t kUnitBytes = 4 * (kWidth * kWidth + kWidth);
    EXPECT_LT(tensor_memory(at::kCPU).live_bytes - before - model.memory_bytes(), kUnitBytes)
        << "stage " << stage;

    torch::optim::AdamW optimizer(model.parameters(), 1e-3);
    const torch::Tensor x = torch::ones({2, kWidth});
    model.train(x, x);
    optimizer.step();
    model.train(x, x);
    // Counted where tensors get memory: the model's, the optimiser's state, and what is left over.
    const std::int64_t live = tensor_memory(at::kCPU).live_bytes - before;
    constexpr double kY = kUnits * (kWidth * kWidth + kWidth);
    const double promised = promised_bytes(stage, kY, rank.size());
    // Up to three buffers for gradients of a unit, and at stage 3 three for its values.
    const double buffers = stage == 3 ? 6 * kUnitBytes : stage == 2 ? 3 * kUnitBytes : 0;
    const auto measured = static_cast<double>(live);
    EXPECT_LE(measured, 1.05 * promised + 16.0 * 2 * kChunkElements + buffers) << "stage " << stage;
    EXPECT_GE(measured, 0.95 * promised - 16.0 * 2 * kChunkElements) << "stage " << stage;
  }
}

RANK_TEST(ModulePipeline, TakesWhatIsLoaded, 2) {
  for (const int stage : {0, 2, 3}) {
    ModulePipelineOptions options = doubles_in("1f1b", 1);
    options.zero_stage = stage;
    ModulePipeline model(small_net(), loss_sum, groups_over(rank, 1), options);
    const Samples own = Samples(4, 0, {2, 6, 6});
    model.train(own.x, own.y);
    const auto fresh = dense(7, 3, 99);
    const std::string path = rank.folder() / ("saved-" + std::to_string(rank.index()));
    torch::save(fresh, path);
    torch::nn::Sequential last =
        std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model.modules().back());
    torch::load(last, path);
    std::size_t seen = 0;
    model.each_value([&](const std::string& name, const torch::Tensor& value) {
      if (!name.starts_with("last.")) return;
      ++seen;
      EXPECT_TRUE(torch::equal(value, fresh->named_parameters()[name.substr(5)])) << name << stage;
    });
    EXPECT_EQ(seen, 2);
  }
}

RANK_TEST(ModulePipeline, NamesWhatDoesNotFit, 2) {
  const PipelineGroups data = groups_over(rank, 1), pipeline = groups_over(rank, 2);
  const Samples own = Samples(4, 0, {2, 6, 6});
  const auto make = [&](std::vector<NamedUnit> units, const ModulePipelineOptions& options,
                        const PipelineGroups& groups) {
    ModulePipeline model(std::move(units), loss_sum, groups, options);
    model.train(own.x, own.y);
  };
  const ModulePipelineOptions options = doubles_in("1f1b", 2);
  std::vector<NamedUnit> units = small_net();
  units[1].flow.gives[0].shape = {10};
  EXPECT_THAT(usage_error_of([&] { make(units, options, data); }),
              HasSubstr("unit 'second' gives Double [2, 9], not Double [2, 10]"));
  units = small_net();
  units[2] = unit("third", [&] { return torch::nn::Linear(9, 7 + rank.index()); }, {7});
  EXPECT_THAT(usage_error_of([&] { make(units, options, data); }),
              HasSubstr("parameter 'third.weight' is of dtype Float, in a model of Double"));
  units = small_net();
  units[7] = unit("last", [&] { return dense(7, 3 + rank.index(), 14); }, {3});
  EXPECT_THAT(usage_error_of([&] { make(units, options, data); }),
              HasSubstr("the modules of the ranks differ: parameter 'last.1.weight'"));
  units.resize(4);
  const auto one = dense(9, 9, 3);
  units[2] = unit("third", [&] { return one; }, {9});
  units[3] = unit("last", [&] { return one; }, {9});
  EXPECT_THAT(usage_error_of([&] { make(units, options, data); }),
              HasSubstr("parameter 'last.1.weight' is 'third.1.weight', of another unit"));
  units = small_net();
  units[1] = unit(
      "second", [] { return torch::nn::Sequential(torch::nn::ReLU(torch::nn::ReLUOptions(true))); },
      {4, 4, 4});
  ModulePipelineOptions again = options;
  again.recompute = Recompute::kUnits;
  EXPECT_THAT(usage_error_of([&] { make(units, again, data); }),
              HasSubstr("unit 'second' writes to its input"));
  units = small_net();
  units.resize(3);
  EXPECT_THAT(usage_error_of([&] { make(units, doubles_in("zb-v", 2), pipeline); }),
              HasSubstr("3 units for 4 stages"));
  ModulePipelineOptions wrong = options;
  wrong.stage_units = {3, 2};
  EXPECT_THAT(usage_error_of([&] { make(small_net(), wrong, pipeline); }),
              HasSubstr("stage_units must be 2 numbers"));
  wrong = doubles_in("zb-v", 2);
  wrong.virtual_stages = 3;
  EXPECT_THAT(usage_error_of([&] { make(small_net(), wrong, pipeline); }),
              HasSubstr("2 virtual stages a rank, not 3"));
  for (const double cost : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (const std::vector<std::int64_t>& by_hand :
         {std::vector<std::int64_t>(), std::vector<std::int64_t>{5, 3}}) {
      units = small_net();
      units[1].cost = cost;
      wrong = options;
      wrong.stage_units = by_hand;
      EXPECT_THAT(usage_error_of([&] { make(units, wrong, pipeline); }),
                  HasSubstr("unit 'second' has a cost of "))
          << cost;
    }
  }
  units = small_net();
  units[0].cost = units[2].cost = std::numeric_limits<double>::max();
  EXPECT_THAT(usage_error_of([&] { make(units, options, pipeline); }),
              HasSubstr("unit 'third' has a cost of "));
  wrong = options;
  wrong.zero_stage = 4;
  EXPECT_THAT(usage_error_of([&] { make(small_net(), wrong, data); }), HasSubstr("zero_stage = 4"));
  wrong = doubles_in("zb-h1", 2);
  wrong.zero_stage = 2;
  wrong.cut_gradients = CutGradients::kEachMicrobatch;
  EXPECT_THAT(usage_error_of([&] { make(small_net(), wrong, pipeline); }),
              HasSubstr("schedule = \"zb-h1\" needs them whole"));
  EXPECT_THAT(usage_error_of([&] {
                ModulePipeline model(small_net(), loss_sum, data, options);
                model.train(own.x.narrow(0, 0, 0), own.y.narrow(0, 0, 0));
              }),
              HasSubstr("no rank has a sample"));
}

}  // namespace
}  // namespace troika::test
