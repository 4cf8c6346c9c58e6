// Gradient buckets on several ranks: the sums are right, whatever the buckets and whichever rank
// comes short, and each starts as soon as it can.
#include <ATen/ATen.h>
#include <troika/observe/recorder.h>
#include <troika/sync/gradients/data_axis.h>

#include <map>

#include "rank_helper.h"
#include "ranks/zero_bench.h"

namespace troika::test {
namespace {

constexpr int kUnits = 5;

std::vector<ParameterSpec> five_units() {
  std::vector<ParameterSpec> specs;
  for (int unit = 0; unit < kUnits; ++unit) {
    ParameterSpec spec;
    spec.name = "unit." + std::to_string(unit);
    spec.shape = {3 + 40 * unit, 7};
    spec.initializer = Initializer::normal(1);
    spec.unit = unit;
    specs.push_back(spec);
  }
  return specs;
}

// Contributions that differ by rank and are no round numbers, so that the order of a sum shows.
at::Tensor contribution(const Parameter& parameter, int rank) {
  return initial_values(parameter.spec(), static_cast<std::uint64_t>(rank) + 1).to(at::kFloat);
}

// One step with `microbatches` contributions of this rank; the gradients afterwards.
at::Tensor reduced(Arena& arena, DataAxis& axis, int rank, int microbatches) {
  axis.begin_step(microbatches, Seconds(30));
  for (int i = 0; i < microbatches; ++i) {
    for (int unit = kUnits; unit-- > 0;) {
      Parameter& parameter = arena.parameter("unit." + std::to_string(unit));
      parameter.add_gradient(contribution(parameter, rank));
      axis.gradients_ready(unit);
    }
  }
  axis.finish();
  return arena.gradients(0, kUnits).clone();
}

RANK_TEST(GradientReducer, GivesTheSameBitsWithAnyBuckets, 1, 2, 3) {
  EngineOptions options = rank.options();
  options.reduction_order = EngineOptions::ReductionOrder::kInOrder;
  std::vector<int> ranks;
  for (int i = 0; i < rank.size(); ++i) ranks.push_back(i);
  const Group group = make_group("data", ranks, rank.index(), options);
  at::Tensor expected;
  std::vector<int> buckets;
  for (const std::int64_t bytes : {1, 4000, 1 << 20}) {
    const Sharding sharding{.shard = group, .buckets = {.first_bytes = bytes, .bytes = bytes}};
    Arena arena(five_units(), {at::kFloat, at::kFloat}, sharding);
    DataAxis axis(arena);
    buckets.push_back(axis.reducer().buckets());
    const at::Tensor sums = reduced(arena, axis, rank.index(), 1);
    if (!expected.defined()) expected = sums;
    EXPECT_TRUE(sums.equal(expected)) << bytes;
    const Parameter& last = arena.parameter("unit.4");
    at::Tensor sum = at::zeros_like(last.gradient());
    for (int i = 0; i < rank.size(); ++i) sum += contribution(last, i);
    EXPECT_TRUE(last.gradient().allclose(sum));
  }
  EXPECT_EQ(buckets.front(), kUnits);
  EXPECT_EQ(buckets.back(), 1);
}

using Names = std::vector<std::string>;

// The reductions of gradients that have started, as the flight recorder has them.
Names begun(const Rank& rank) {
  Names names;
  for (const auto& one : read_recorder(recorder_path(rank.folder(), rank.index())).operations) {
    names.push_back(one.operation + " " + one.label);
  }
  return names;
}

RANK_TEST(GradientReducer, StartsABucketWhenItsUnitIsReadyForTheLastTime, 2) {
  EngineOptions options = rank.options();
  options.observers.recorder =
      Recorder::create(recorder_path(rank.folder(), rank.index()), rank.index(), "here");
  const Group group = make_group("data", std::vector<int>{0, 1}, rank.index(), options);
  for (const int stage : {0, 1}) {
    const Sharding sharding{.stage = stage,
                            .shard = group,
                            .microbatches_per_step = 2,
                            .buckets = {.first_bytes = 1, .bytes = 1}};
    Arena arena(five_units(), {at::kFloat, at::kFloat}, sharding);
    DataAxis axis(arena);
    Names expected = begun(rank);
    axis.begin_step(2, Seconds(30));
    for (int unit = kUnits; unit-- > 0;) axis.gradients_ready(unit);
    EXPECT_EQ(begun(rank), expected) << "another microbatch is to come";
    for (int unit = kUnits; unit-- > 0;) {
      axis.gradients_ready(unit);
      expected.push_back((stage == 0 ? "all_reduce" : "reduce_scatter") +
                         (" gradient bucket " + std::to_string(kUnits - unit)));
      EXPECT_EQ(begun(rank), expected) << "stage " << stage;
    }
    axis.finish();
    EXPECT_EQ(begun(rank), expected);
  }
}

constexpr int kMicrobatches = 3;

// What a rank contributes in a microbatch of a step: another number in each, so that a sum that is
// lost or doubled shows.
at::Tensor contribution_of(const Parameter& parameter, int rank, int microbatch, int step) {
  return contribution(parameter, rank).to(at::kDouble) * (1 + microbatch + 10 * step);
}

at::Tensor sum_of_contributions(const Parameter& parameter, int ranks, int step) {
  at::Tensor sum = at::zeros(parameter.spec().shape, at::kDouble);
  for (int rank = 0; rank < ranks; ++rank) {
    for (int i = 0; i < kMicrobatches; ++i) sum += contribution_of(parameter, rank, i, step);
  }
  return sum;
}

// A step as a pipeline with two virtual stages may have it: the units from `first_of_late` on have
// all of their backward passes before the others have one.
void run_step(Arena& arena, DataAxis& axis, const Rank& rank, int step, int first_of_late) {
  axis.begin_step(kMicrobatches, Seconds(30));
  for (const auto& [begin, end] : {std::pair(first_of_late, kUnits), std::pair(0, first_of_late)}) {
    for (int i = 0; i < kMicrobatches; ++i) {
      for (int unit = end; unit-- > begin;) {
        axis.prepare_gradients(unit);
        Parameter& parameter = arena.parameter("unit." + std::to_string(unit));
        parameter.add_gradient(contribution_of(parameter, rank.index(), i, step));
        axis.gradients_ready(unit);
      }
    }
  }
  axis.finish();
}

void expect_sums_of_each_microbatch(const Rank& rank, const Sharding& sharding) {
  Arena arena(five_units(), {at::kDouble, at::kDouble}, sharding);
  DataAxis axis(arena);
  EXPECT_EQ(arena.bytes(Storage::kGradients), arena.layout().own_elements() * 8);
  for (int step = 1; step <= 3; ++step) {
    run_step(arena, axis, rank, step, step == 2 ? 2 : kUnits);
    for (const LocalShard& shard : arena.local_shards()) {
      const Parameter& parameter = *arena.parameters()[shard.parameter];
      const at::Tensor whole = sum_of_contributions(parameter, rank.size(), step);
      const at::Tensor expected = whole.flatten().narrow(0, shard.begin, shard.count);
      EXPECT_TRUE(shard.gradient.allclose(expected, 1e-13, 1e-13))
          << parameter.spec().name << ", step " << step << ", stage " << sharding.stage;
    }
  }
  EXPECT_LE(axis.reducer().buffers(), 3u);
}

RANK_TEST(GradientReducer, AddsEachMicrobatchToTheShard, 1, 3, 4) {
  for (const int width : {0, 2}) {  // all ranks, and pairs with copies across
    if (width > 0 && rank.size() != 4) continue;
    Sharding sharding = sharding_over(rank, 2, width);
    sharding.microbatches_per_step = kMicrobatches;
    sharding.cut_gradients = CutGradients::kEachMicrobatch;
    for (sharding.stage = 2; sharding.stage <= 3; ++sharding.stage) {
      for (const std::int64_t bytes : {1, 9000, 1 << 20}) {
        sharding.buckets = {.first_bytes = bytes, .bytes = bytes};
        expect_sums_of_each_microbatch(rank, sharding);
      }
    }
  }
}

// Ranks of the same place in a pipeline run the same passes, so that the order is theirs, too.
RANK_TEST(GradientReducer, ReducesABucketAfterEachMicrobatch, 2) {
  const auto recorder =
      Recorder::create(recorder_path(rank.folder(), rank.index()), rank.index(), "here");
  Sharding sharding = sharding_over(rank, 2, 0, recorder);
  sharding.microbatches_per_step = 2;
  sharding.cut_gradients = CutGradients::kEachMicrobatch;
  sharding.buckets = {.first_bytes = 1, .bytes = 1};
  Arena arena(five_units(), {at::kFloat, at::kFloat}, sharding);
  DataAxis axis(arena);
  Names expected = begun(rank);
  axis.begin_step(2, Seconds(30));
  for (int microbatch = 1; microbatch <= 2; ++microbatch) {
    for (int unit = kUnits; unit-- > 0;) {
      axis.prepare_gradients(unit);
      axis.gradients_ready(unit);
      expected.push_back("reduce_scatter gradient bucket " + std::to_string(kUnits - unit));
      EXPECT_EQ(begun(rank), expected) << "microbatch " << microbatch;
    }
  }
  axis.finish();
  EXPECT_EQ(begun(rank), expected);
}

// Peers read the arena: 2 steps for a large bucket, where ordinary memory takes 2 a window
// (docs/engines.md).
RANK_FUNCTION(reduces_the_arena_in_place) {
  const std::filesystem::path path = recorder_path(rank.folder(), rank.index());
  EngineOptions options = rank.options();
  options.observers.recorder = Recorder::create(path, rank.index(), "here");
  ParameterSpec spec;
  spec.name = "large";
  spec.shape = {512, 512};
  spec.initializer = Initializer::normal(1);
  const Group group = make_group("data", std::vector<int>{0, 1}, rank.index(), options);
  Arena arena({&spec, 1}, {at::kFloat, at::kFloat}, group);
  DataAxis axis(arena);
  axis.begin_step(1, Seconds(30));
  axis.gradients_ready(0);
  axis.finish();
  const at::Tensor ordinary = at::ones(spec.shape);
  group.all_reduce(ordinary, ReduceOp::kSum, Rank::call("ordinary memory")).wait();

  std::map<std::string, std::uint32_t> steps;
  for (const auto& one : read_recorder(path).operations) {
    if (one.elements >= ordinary.numel()) steps[one.operation + " " + one.label] = one.steps;
  }
  EXPECT_EQ(steps.at("all_reduce gradient bucket 1"), 2u);
  EXPECT_GT(steps.at("all_reduce ordinary memory"), 2u);
}

TEST(GradientReducer, ReducesLargeBucketsInMemoryForAll) {
  expect_ranks("reduces_the_arena_in_place", 2, {.engine = "shm"});
}

RANK_TEST(GradientReducer, TakesRanksWithMoreFewerOrNoMicrobatches, 3) {
  const Group group = rank.group();
  Arena arena(five_units(), {at::kFloat, at::kFloat}, group);
  DataAxis axis(arena);
  // Rank 0 has two microbatches, rank 1 has one, rank 2 has none; the step before leaves no trace.
  (void)reduced(arena, axis, rank.index(), 1);
  (void)reduced(arena, axis, rank.index(), 2 - rank.index());
  for (const auto& parameter : arena.parameters()) {
    const at::Tensor expected = 2 * contribution(*parameter, 0) + contribution(*parameter, 1);
    EXPECT_TRUE(parameter->gradient().allclose(expected)) << parameter->spec().name;
  }
}

}  // namespace
}  // namespace troika::test
