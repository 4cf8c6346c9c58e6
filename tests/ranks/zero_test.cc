// ZeRO on several ranks: the same bits at every stage, the memory that docs/zero.md promises,
// gathers and reductions in their order.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/optim/gradient_norm.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "ranks/zero_bench.h"

namespace troika::test {
namespace {

constexpr int kSteps = 2;
constexpr NumericTypes kFp32{at::kFloat, at::kFloat};
constexpr NumericTypes kFp64{at::kDouble, at::kDouble};
constexpr NumericTypes kBf16{at::kBFloat16, at::kFloat};

Outcome train(const ZeroRun& run, const Sharding& sharding, int data_rank) {
  ZeroBench bench(run, sharding, data_rank);
  for (int i = 0; i < kSteps; ++i) static_cast<void>(bench.step());
  return bench.outcome();
}

std::string describe(const ZeroRun& run, int stage) {
  return std::string(c10::toString(run.types.compute)) + ", " +
         std::string(run.optimizer.kind.name()) + ", stage " + std::to_string(stage);
}

// The groups are made once; only the stage changes.
void expect_same_bits(const ZeroRun& run, Sharding sharding, int data_rank) {
  sharding.stage = 0;
  const Outcome expected = train(run, sharding, data_rank);
  for (int stage = 1; stage <= 3; ++stage) {
    sharding.stage = stage;
    EXPECT_EQ(train(run, sharding, data_rank).difference_from(expected), "")
        << describe(run, stage);
  }
}

RANK_TEST(Zero, GivesTheSameBitsAtEveryStage, 2, 3) {
  const Sharding sharding = sharding_over(rank, 0);
  const std::vector<std::pair<NumericTypes, std::string_view>> runs = {
      {kFp32, "sgd"},   {kFp32, "adamw"}, {kFp32, "lamb"}, {kFp32, "lars"}, {kFp32, "lion"},
      {kBf16, "adamw"}, {kBf16, "lamb"},  {kBf16, "lion"}, {kFp64, "sgd"},  {kFp64, "lars"}};
  for (const auto& [types, kind] : runs) {
    expect_same_bits({.model = small_gpt(), .optimizer = optimizer_of(kind), .types = types},
                     sharding, rank.index());
  }
}

RANK_TEST(Zero, GivesTheSameBitsForEveryKindOfModel, 2, 4) {
  const Sharding sharding = sharding_over(rank, 0);
  ModelOptions untied = small_gpt();
  auto& gpt = untied.as<GptOptions>();
  gpt.tied_embeddings = false;
  gpt.norm = Norm::kLayerNorm;
  gpt.bias = true;
  for (const ModelOptions& model : {small_mlp(), untied}) {
    for (const NumericTypes types : {kFp32, kBf16}) {
      expect_same_bits({.model = model, .optimizer = optimizer_of("lamb"), .types = types},
                       sharding, rank.index());
    }
  }
}

RANK_TEST(Zero, GivesTheSameBitsWhileMicrobatchesAreAddedUp, 2) {
  const Sharding sharding = sharding_over(rank, 0);
  for (const NumericTypes types : {kFp32, kBf16}) {
    expect_same_bits({.model = small_gpt(), .types = types, .microbatches = 3}, sharding,
                     rank.index());
  }
}

// Ranks are added before microbatches: in another order, in which fp64 differs in its last digits.
RANK_TEST(Zero, GivesTheSameNumbersWhereEachMicrobatchIsCut, 2, 4) {
  Sharding sharding = sharding_over(rank, 0, rank.size() == 4 ? 2 : 0);
  const ZeroRun run{
      .model = small_gpt(), .optimizer = optimizer_of("sgd"), .types = kFp64, .microbatches = 3};
  const Outcome expected = train(run, sharding, rank.index());
  sharding.cut_gradients = CutGradients::kEachMicrobatch;
  std::vector<Outcome> outcomes;
  for (const int stage : {2, 3}) {
    sharding.stage = stage;
    outcomes.push_back(train(run, sharding, rank.index()));
    ASSERT_EQ(outcomes.back().tensors.size(), expected.tensors.size());
    for (std::size_t i = 0; i < expected.tensors.size(); ++i) {
      const auto& [name, tensor] = expected.tensors[i];
      const double largest = tensor.abs().max().item<double>();
      EXPECT_TRUE(outcomes.back().tensors[i].second.allclose(tensor, 0, 1e-12 * largest)) << name;
    }
  }
  EXPECT_EQ(outcomes[0].difference_from(outcomes[1]), "") << "stages have the same bits";
}

RANK_TEST(Zero, GivesTheSameBitsWithShardsInsideGroups, 4) {
  const Sharding pairs = sharding_over(rank, 0, 2);
  for (const NumericTypes types : {kFp32, kBf16}) {
    for (const std::string_view kind : {"adamw", "lars"}) {
      expect_same_bits({.model = small_gpt(), .optimizer = optimizer_of(kind), .types = types},
                       pairs, rank.index());
    }
  }
}

RANK_TEST(Zero, GivesTheSameBitsWithAnyBuckets, 2) {
  Sharding sharding = sharding_over(rank, 0);
  const ZeroRun run{.model = small_gpt(), .types = kBf16};
  const Outcome expected = train(run, sharding, rank.index());
  for (const int stage : {0, 1, 2}) {
    for (const std::int64_t bytes : {1, 200000}) {
      sharding.stage = stage;
      sharding.buckets = {.first_bytes = bytes, .bytes = bytes};
      EXPECT_EQ(train(run, sharding, rank.index()).difference_from(expected), "")
          << stage << ", " << bytes;
    }
  }
}

RANK_FUNCTION(same_bits_over_gloo) {
  const Sharding sharding = sharding_over(rank, 0);
  for (const NumericTypes types : {kFp32, kBf16}) {
    expect_same_bits({.model = small_gpt(), .types = types}, sharding, rank.index());
  }
}
TEST(Zero, GivesTheSameBitsOverGloo) {
  RankOptions options;
  options.engine = "gloo";
  options.reduction_order = EngineOptions::ReductionOrder::kInOrder;
  expect_ranks("same_bits_over_gloo", 3, options);
}

RANK_TEST(Zero, DifferentDataGiveDifferentBits, 2) {
  // Different data on another layout must show, or equality would mean nothing.
  const Sharding sharding = sharding_over(rank, 2);
  const ZeroRun run{.model = small_mlp()};
  const Outcome expected = train(run, sharding, rank.index());
  EXPECT_NE(train(run, sharding, rank.index() + 1).difference_from(expected), "");
}

// Bytes of Y parameters cut among N ranks: the table of docs/zero.md, for AdamW. With several
// microbatches a step gradients, of 4 bytes, are kept whole, unless each microbatch is cut.
double promised_bytes(int stage, bool mixed, bool several, double y, double n) {
  double whole = mixed ? std::array{18.0, 6.0, 2.0, 0.0}[static_cast<std::size_t>(stage)]
                       : std::array{16.0, 8.0, 4.0, 0.0}[static_cast<std::size_t>(stage)];
  if (several && stage > 1) whole += 4;
  const double all = mixed ? 18 : 16;
  return whole * y + (all - whole) * y / n;
}

void check_memory(const ZeroRun& run, const Sharding& sharding, int rank) {
  ZeroBench bench(run, sharding, rank);
  const int stage = sharding.stage;
  const bool several =
      run.microbatches > 1 && sharding.cut_gradients == CutGradients::kLastMicrobatch;
  const bool mixed = run.types.compute == at::kBFloat16;
  if (stage > 1) static_cast<void>(bench.step());  // which takes buffers
  const auto y = static_cast<double>(bench.arena().parameter_count());
  const double promised = promised_bytes(stage, mixed, several, y, sharding.shard.size());
  // A shard is up to two chunks off its share.
  EXPECT_NEAR(static_cast<double>(bench.arena_bytes()), promised,
              0.05 * promised + 18.0 * 2 * kChunkElements)
      << "stage " << stage << ", " << run.microbatches << " microbatches";
  std::int64_t largest = 0;
  for (const Bucket& bucket : bench.arena().layout().buckets()) {
    largest = std::max(largest, bucket.count());
  }
  // Three buffers of values, and three of gradients that are not kept, for a unit each.
  const std::int64_t of_values = stage == 3 ? (mixed ? 2 : 4) : 0;
  const std::int64_t of_gradients = stage > 1 && !several ? 4 : 0;
  EXPECT_LE(bench.axis().buffer_bytes(), 3 * largest * (of_values + of_gradients) + 3 * 4096)
      << "stage " << stage;
  EXPECT_EQ(bench.axis().buffer_bytes() > 0, of_values + of_gradients > 0);
}

RANK_TEST(Zero, KeepsTheMemoryThatTheTablePromises, 2, 4) {
  Sharding sharding = sharding_over(rank, 0);
  const ModelOptions model(mlp_kind(), MlpOptions{512, {1024, 512, 1024, 128}, 10});
  for (const bool mixed : {false, true}) {
    for (const int microbatches : {1, 2}) {
      for (sharding.stage = 0; sharding.stage <= 3; ++sharding.stage) {
        const NumericTypes types = mixed ? kBf16 : kFp32;
        for (const auto cut : {CutGradients::kLastMicrobatch, CutGradients::kEachMicrobatch}) {
          sharding.cut_gradients = cut;
          check_memory({.model = model, .types = types, .microbatches = microbatches}, sharding,
                       rank.index());
        }
      }
    }
  }
}

RANK_TEST(Zero, GathersAUnitAheadAndKeepsThree, 2) {
  const Sharding sharding = sharding_over(rank, 3);
  ZeroBench bench({.model = small_mlp()}, sharding, rank.index());
  const ParameterGatherer& gatherer = bench.axis().gatherer();
  DataAxis& axis = bench.axis();
  const auto gathers = [&] { return gatherer.gathers(); };
  using testing::ElementsAre;

  ASSERT_EQ(bench.arena().units(), 5);
  axis.unshard(0, Direction::kForward);
  EXPECT_THAT(gathers(), ElementsAre(0, 1));
  for (int unit = 0; unit < 5; ++unit) {
    if (unit > 0) axis.unshard(unit, Direction::kForward);
    axis.reshard(unit);
  }
  EXPECT_THAT(gathers(), ElementsAre(0, 1, 2, 3, 4));
  axis.unshard(4, Direction::kBackward);  // the last of the forward pass is there still
  axis.reshard(4);
  axis.unshard(3, Direction::kBackward);
  axis.reshard(3);
  EXPECT_THAT(gathers(), ElementsAre(0, 1, 2, 3, 4));
  for (int unit = 2; unit >= 0; --unit) {
    axis.unshard(unit, Direction::kBackward);
    EXPECT_EQ(
        bench.arena().parameters()[static_cast<std::size_t>(2 * unit)]->working_weight().dim(), 2);
    axis.reshard(unit);
    EXPECT_THROW(
        (void)bench.arena().parameters()[static_cast<std::size_t>(2 * unit)]->working_weight(),
        InternalError);
  }
  EXPECT_THAT(gathers(), ElementsAre(0, 1, 2, 3, 4, 1, 0));
  axis.after_update();
  EXPECT_THAT(gathers(), ElementsAre(0));
  axis.unshard(0, Direction::kForward);
  EXPECT_THAT(gathers(), ElementsAre(0, 1));
  axis.reshard(0);
  EXPECT_EQ(gatherer.most_buffers(), 3U);
  EXPECT_THROW(axis.reshard(0), InternalError);
}

RANK_TEST(Zero, GathersTheTiedEmbeddingForTheHead, 2) {
  ZeroBench bench({.model = small_gpt()}, sharding_over(rank, 3), rank.index());
  for (int i = 0; i < 2; ++i) static_cast<void>(bench.step());
  EXPECT_EQ(bench.axis().gatherer().most_buffers(), 3U);
  EXPECT_LE(bench.axis().reducer().buffers(), 3U);
}

RANK_TEST(Zero, ReducesBucketsInOneOrderWhateverBecomesReadyFirst, 2) {
  for (const int stage : {0, 1, 2, 3}) {
    Sharding sharding = sharding_over(rank, stage);
    sharding.buckets = {.first_bytes = 1, .bytes = 1};
    std::vector<ParameterSpec> specs(5);
    for (int unit = 0; unit < 5; ++unit) {
      ParameterSpec& spec = specs[static_cast<std::size_t>(unit)];
      spec.name = std::to_string(unit);
      spec.shape = {10000 + 1000 * unit};  // a mix-up would not go together
      spec.unit = unit;
    }
    Arena arena(specs, kFp32, sharding);
    DataAxis axis(arena);
    EXPECT_THAT(axis.reducer().order(), testing::ElementsAre(4, 3, 2, 1, 0));
    axis.begin_step(1, Seconds(30));
    for (int i = 0; i < 5; ++i) {
      const int unit = rank.index() == 0 ? i : 4 - i;
      axis.prepare_gradients(unit);
      Parameter& parameter = arena.parameter(std::to_string(unit));
      parameter.add_gradient(at::arange(parameter.spec().local_count()) *
                             static_cast<double>(rank.index() + 1));
      axis.gradients_ready(unit);
    }
    axis.finish();
    for (const LocalShard& shard : arena.local_shards()) {
      const at::Tensor expected =
          at::arange(shard.begin, shard.begin + shard.count, at::kFloat) * 3;
      EXPECT_TRUE(shard.gradient.equal(expected)) << stage;
    }
    EXPECT_THROW(axis.gradients_ready(0), InternalError);
  }
}

RANK_TEST(Zero, CountsGradientsThatARankDoesNotGiveAsZero, 2) {
  for (const int stage : {1, 2, 3}) {
    std::vector<ParameterSpec> specs(2);
    for (int unit = 0; unit < 2; ++unit) {
      specs[static_cast<std::size_t>(unit)].name = std::to_string(unit);
      specs[static_cast<std::size_t>(unit)].shape = {20000};
      specs[static_cast<std::size_t>(unit)].unit = unit;
    }
    Arena arena(specs, kFp32, sharding_over(rank, stage));
    DataAxis axis(arena);
    for (int step = 0; step < 2; ++step) {  // rank 1 has no microbatch, rank 0 one for unit 1 only
      axis.begin_step(rank.index() == 0 ? 1 : 0, Seconds(30));
      if (rank.index() == 0) {
        axis.prepare_gradients(1);
        arena.parameter("1").add_gradient(at::ones({20000}));
        axis.gradients_ready(1);
        axis.gradients_ready(0);
      }
      axis.finish();
      for (const LocalShard& shard : arena.local_shards()) {
        EXPECT_TRUE(shard.gradient.equal(at::full({shard.count}, float(shard.parameter))));
      }
    }
    axis.begin_step(1, Seconds(30));
    if (stage > 1) {
      EXPECT_THROW(axis.begin_step(2, Seconds(30)), InternalError);
    }
  }
}

// Of 1, 2, ... n.
double sum_of_squares(double n) {
  return n * (n + 1) * (2 * n + 1) / 6;
}

RANK_TEST(ParameterSums, ADroppedShardChangesTheNorm, 2, 3) {
  ParameterSpec spec;
  spec.name = "w";
  spec.shape = {200, 150};
  for (const int stage : {1, 2}) {
    Arena arena({&spec, 1}, kFp64, sharding_over(rank, stage));
    if (!arena.keeps_gradients()) {
      arena.parameter("w").set_gradient(at::empty({200, 150}, at::kDouble));
    }
    arena.parameter("w").claim_zeroed();
    for (const LocalShard& shard : arena.local_shards()) {
      shard.gradient.copy_(at::arange(shard.begin + 1, shard.begin + shard.count + 1, at::kDouble));
    }
    const double right = std::sqrt(sum_of_squares(30000));
    EXPECT_NEAR(global_norm(arena), right, 1e-12 * right);
    const ParameterSums sums(arena);
    std::vector<double> squares(chunks_of(arena).size(), rank.index() == 1 ? 0.0 : 1.0);
    EXPECT_LT(sums.total(squares, "dropped"), 4);  // of four chunks
    std::ranges::fill(squares, 1.0);
    EXPECT_EQ(sums.total(squares, "all"), 4);
  }
}

ParameterSpec named(std::string name, std::vector<std::int64_t> shape) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  return spec;
}

RANK_TEST(ParameterSums, ATiedReplicaCountsOnce, 2) {
  // Two pipeline stages that share a weight; each has one of its own, too.
  const Group pipeline = rank.group("pipeline");
  const auto norm = [&](bool is_replica) {
    std::vector specs = {named("tied", {2}), named(rank.index() == 0 ? "a" : "b", {1})};
    specs[0].tied_replica = is_replica && rank.index() == 1;
    Arena arena(specs, kFp64, Group());
    arena.parameter("tied").add_gradient(at::tensor({2.0, 4.0}, at::kDouble));
    arena.parameters()[1]->add_gradient(at::full({1}, 1.0 + rank.index(), at::kDouble));
    const ParameterSums sums(arena, {.pipeline = pipeline, .names = {"b", "tied", "a"}});
    return global_norm(arena, sums);
  };
  EXPECT_EQ(norm(true), 5);                        // 4 + 16, 1, 4
  EXPECT_EQ(norm(false), std::sqrt(20 + 20 + 5));  // twice
}

RANK_TEST(ParameterSums, EveryElementCountsOnceOverTheTensorAxis, 2) {
  // Rows 0..1 and 1..2 of [3, 2]: the row in the middle is on both, and rank 1 counts it.
  std::vector specs = {named("split", {3, 2}), named("alike", {2})};
  specs[0].slice = Slice{0, rank.index(), rank.index() + 2};
  if (rank.index() == 0) specs[0].owned = 2;
  Arena arena(specs, kFp64, Group());
  const at::Tensor whole = at::arange(1, 7, at::kDouble).view({3, 2});
  arena.parameter("split").add_gradient(whole.narrow(0, rank.index(), 2));
  arena.parameter("alike").add_gradient(at::tensor({2.0, 1.0}, at::kDouble));
  const ParameterSums sums(arena, {.tensor = rank.group("tensor")});
  EXPECT_DOUBLE_EQ(global_norm(arena, sums), std::sqrt(sum_of_squares(6) + 5));
  EXPECT_NE(global_norm(arena), global_norm(arena, sums));
}

RANK_TEST(GradientReducer, SumsPartialGradientsOverTheTensorAxis, 2) {
  std::vector specs = {named("alike", {2}), named("overlapping", {5, 3}), named("own", {4})};
  specs[0].partial_over = specs[1].partial_over = {Axis::kTensor};
  specs[1].slice = Slice{0, 2 * rank.index(), 2 * rank.index() + 3};  // rows 0..2 and 2..4
  Arena arena(specs, kFp32, Group());
  DataAxis axis(arena, {.tensor = rank.group("tensor")});
  axis.begin_step(1, Seconds(30));
  const float own = 1.0F + static_cast<float>(rank.index());
  for (const auto& parameter : arena.parameters()) {
    parameter->add_gradient(at::full(parameter->spec().local_shape(), own));
  }
  axis.gradients_ready(0);
  axis.finish();
  EXPECT_TRUE(arena.parameter("alike").gradient().equal(at::full({2}, 3.0F)));
  EXPECT_TRUE(arena.parameter("own").gradient().equal(at::full({4}, own)));
  at::Tensor expected = at::full({3, 3}, own);
  expected[rank.index() == 0 ? 2 : 0].fill_(3);  // the row that both have
  EXPECT_TRUE(arena.parameter("overlapping").gradient().equal(expected));
}

// Ranks 0 and 1 are the first stage, 2 and 3 the last; the weight in unit 0 is tied to unit 2's.
RANK_TEST(GradientReducer, SumsATiedWeightOverItsStagesAndThenOverTheDataAxis, 4) {
  EngineOptions options = rank.options();
  const int stage = rank.index() / 2, data_rank = rank.index() % 2;
  const Group data = make_group("data", {2 * stage, 2 * stage + 1}, data_rank, options);
  const Group embedding = make_group("embedding", {data_rank, 2 + data_rank}, stage, options);
  std::vector specs = {named("tied", {3}), named("w", {20000})};
  specs[0].partial_over = {Axis::kPipeline};
  // The first unit of the first stage, the last one of the last stage.
  specs[0].unit = stage == 0 ? 0 : 1;
  specs[1].unit = 1 - specs[0].unit;
  for (const int zero : {0, 1, 2, 3}) {
    const Sharding sharding{.stage = zero, .shard = data, .buckets = {1, 1}};
    Arena arena(specs, kFp32, sharding);
    DataAxis axis(arena, {.embedding = embedding});
    axis.begin_step(1, Seconds(30));
    for (int unit = 1; unit >= 0; --unit) {
      axis.prepare_gradients(unit);
      Parameter& parameter = arena.parameter(specs[0].unit == unit ? "tied" : "w");
      parameter.add_gradient(
          at::full(parameter.spec().local_shape(), std::pow(10.0, rank.index())));
      axis.gradients_ready(unit);
    }
    axis.finish();
    const auto tied_block = static_cast<std::size_t>(specs[0].unit);
    EXPECT_EQ(axis.reducer().order().back(), tied_block);
    for (const LocalShard& shard : arena.local_shards()) {
      const bool is_tied = arena.parameters()[shard.parameter]->spec().name == "tied";
      const float expected = is_tied ? 1111.0F : stage == 0 ? 11.0F : 1100.0F;
      EXPECT_TRUE(shard.gradient.equal(at::full({shard.count}, expected))) << zero;
    }
  }
}

}  // namespace
}  // namespace troika::test
