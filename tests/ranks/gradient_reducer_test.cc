// Gradient buckets on several ranks: the sums are right, whatever the buckets and whoever comes
// short.
#include <ATen/ATen.h>
#include <troika/parallel/data/data_axis.h>

#include "rank_helper.h"

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
      axis.unit_ready(unit);
    }
  }
  axis.finish();
  return arena.gradients(0, kUnits).clone();
}

RANK_TEST(GradientReducer, GivesTheSameBitsWithAnyBuckets, 1, 2, 3) {
  EngineOptions options = rank.options();
  options.fold = EngineOptions::Fold::kInOrder;
  std::vector<int> ranks;
  for (int i = 0; i < rank.size(); ++i) ranks.push_back(i);
  const Group group = make_group("data", ranks, rank.index(), options);
  at::Tensor expected;
  std::vector<int> buckets;
  for (const std::int64_t bytes : {1, 4000, 1 << 20}) {
    const Sharding sharding{.shard = group, .buckets = {.first_bytes = bytes, .bytes = bytes}};
    Arena arena(five_units(), {at::kFloat, at::kFloat}, sharding);
    DataAxis axis(arena);
    buckets.push_back(axis.reducer().blocks());
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
