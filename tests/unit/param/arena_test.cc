#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/param/arena.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>

#include "support/silent_engine.h"

namespace troika {
namespace {

constexpr NumericTypes kFp32Types{at::kFloat, at::kFloat};
constexpr NumericTypes kBf16Types{at::kBFloat16, at::kFloat};

ParameterSpec spec_of(std::string name, std::vector<std::int64_t> shape, int unit = 0) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  spec.unit = unit;
  spec.initializer = Initializer::normal(0.02);
  return spec;
}

ParameterSpec tied(std::string name, std::vector<std::int64_t> shape, std::string to) {
  ParameterSpec spec = spec_of(std::move(name), std::move(shape));
  spec.tied_to = std::move(to);
  return spec;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InternalError& error) {
    return error.what();
  }
  return "no error";
}

bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 64 == 0;
}

TEST(Arena, LaysOutUnitsInOrderWithAlignedSlots) {
  const std::vector specs = {spec_of("late", {5, 3}, 2), spec_of("first", {7}, 0),
                             spec_of("second", {33}, 0), spec_of("scalar", {}, 2)};
  for (const NumericTypes types :
       {kFp32Types, kBf16Types, NumericTypes{at::kDouble, at::kDouble}}) {
    const Arena arena(specs, types, Group());
    std::vector<std::string> names;
    const char* end = nullptr;
    for (const auto& parameter : arena.parameters()) {
      names.push_back(parameter->spec().name);
      EXPECT_TRUE(is_aligned(parameter->master()));
      EXPECT_TRUE(is_aligned(parameter->working_weight()));
      EXPECT_TRUE(is_aligned(parameter->gradient()));
      EXPECT_EQ(parameter->master().scalar_type(), types.master);
      EXPECT_EQ(parameter->gradient().scalar_type(), types.master);
      EXPECT_EQ(parameter->working_weight().scalar_type(), types.compute);
      const auto* begin = static_cast<const char*>(parameter->master().const_data_ptr());
      EXPECT_GE(begin, end) << parameter->spec().name;
      end = begin + parameter->master().nbytes();
    }
    EXPECT_THAT(names, testing::ElementsAre("first", "second", "late", "scalar"));
    EXPECT_EQ(arena.units(), 3);
    EXPECT_EQ(arena.parameter_count(), 15 + 7 + 33 + 1);
  }
}

TEST(Arena, MastersServeAsValuesInFullPrecision) {
  const std::vector specs = {spec_of("w", {4})};
  const Arena single(specs, kFp32Types, Group());
  EXPECT_EQ(single.parameter("w").working_weight().const_data_ptr(),
            single.parameter("w").master().const_data_ptr());
  const Arena mixed(specs, kBf16Types, Group());
  EXPECT_NE(mixed.parameter("w").working_weight().const_data_ptr(),
            mixed.parameter("w").master().const_data_ptr());
}

TEST(Arena, FlatViewsCoverTheirUnitsAndShareMemory) {
  const std::vector specs = {spec_of("a", {40}, 0), spec_of("b", {3}, 1), spec_of("c", {5}, 3)};
  const Arena arena(specs, kFp32Types, Group());
  ASSERT_EQ(arena.units(), 4);
  EXPECT_EQ(arena.gradients(2, 3).numel(), 0);  // a unit without parameters
  EXPECT_EQ(arena.gradients(0, 4).numel(),
            arena.gradients(0, 1).numel() + arena.gradients(1, 4).numel());

  arena.parameter("b").add_gradient(at::ones({3}));
  EXPECT_EQ(arena.gradients(1, 2).sum().item<float>(), 3);  // padding is zero
  EXPECT_EQ(arena.gradients(0, 1).sum().item<float>(), 0);
  arena.masters(3, 4).fill_(2);
  EXPECT_EQ(arena.parameter("c").master().sum().item<float>(), 10);
}

ParameterSpec frozen(ParameterSpec spec) {
  spec.frozen = true;
  return spec;
}

// 64 elements are trained, 128 frozen, 32 of them a norm that stays in fp32.
TEST(Arena, AFrozenParameterCostsItsValueAlone) {
  std::vector specs = {frozen(spec_of("below", {96}, 0)), spec_of("trained", {64}, 1),
                       frozen(spec_of("norm", {32}, 1))};
  specs[2].keep_fp32 = true;
  struct Costs {
    NumericTypes types;
    int stage;
    std::int64_t values, masters;
  };
  for (const Costs& each : {Costs{kFp32Types, 0, 0, 192 * 4}, Costs{kFp32Types, 3, 0, 192 * 4},
                            Costs{kBf16Types, 0, 160 * 2 + 32 * 4, 64 * 4},
                            Costs{kBf16Types, 1, 160 * 2 + 32 * 4, 64 * 4}}) {
    Arena arena(specs, each.types, Sharding{.stage = each.stage});
    EXPECT_EQ(arena.bytes(Storage::kWorkingWeights), each.values);
    EXPECT_EQ(arena.bytes(Storage::kMasters), each.masters);
    EXPECT_EQ(arena.trained_master_bytes(), 64 * 4);
    EXPECT_EQ(arena.bytes(Storage::kGradients), 64 * 4);
    (void)arena.allocate_state();
    EXPECT_EQ(arena.bytes(Storage::kState), 64 * 4);
  }
}

TEST(Arena, AFrozenParameterHasTheValueThatItWouldComputeWith) {
  std::vector specs = {spec_of("below", {96}, 0), spec_of("trained", {64}, 1),
                       spec_of("norm", {32}, 1)};
  specs[2].keep_fp32 = true;
  const std::vector some_frozen = {frozen(specs[0]), specs[1], frozen(specs[2])};
  for (const NumericTypes types : {kFp32Types, kBf16Types}) {
    for (const int stage : {0, 1, 2}) {
      Arena all(specs, types, Sharding{.stage = stage});
      Arena arena(some_frozen, types, Sharding{.stage = stage});
      all.initialize(3);
      arena.initialize(3);
      for (const char* name : {"below", "trained", "norm"}) {
        EXPECT_TRUE(
            arena.parameter(name).working_weight().equal(all.parameter(name).working_weight()))
            << name << " at stage " << stage;
      }
      ASSERT_EQ(arena.local_shards().size(), 3U);
      ASSERT_EQ(arena.trained_shards().size(), 1U);
      for (const LocalShard& shard : arena.local_shards().subspan(1)) {
        EXPECT_EQ(shard.master.const_data_ptr(), shard.working_weight.const_data_ptr());
        EXPECT_FALSE(shard.gradient.defined());
      }
      arena.publish();  // which rounds masters to working weights
      EXPECT_EQ(arena.parameter("below").working_weight().scalar_type(), types.compute);
      EXPECT_EQ(arena.parameter("norm").working_weight().scalar_type(), types.master);
    }
  }
}

TEST(Arena, AFrozenParameterTakesNoGradient) {
  const std::vector specs = {frozen(spec_of("w", {4})), spec_of("v", {4})};
  const Arena arena(specs, kFp32Types, Group());
  Parameter& parameter = arena.parameter("w");
  parameter.add_gradient(at::ones({4}));
  parameter.claim_zeroed();
  EXPECT_FALSE(parameter.claimed());
  EXPECT_THAT(message_of([&] { (void)parameter.gradient(); }), testing::HasSubstr("'w'"));
  EXPECT_THAT(arena.buckets_of(0), testing::ElementsAre(0, 1));
  EXPECT_THAT(arena.trained_buckets_of(0), testing::ElementsAre(0));
}

TEST(Arena, TiedNamesGiveTheParameterTheyAreTiedTo) {
  // Several of them, in an order in which no prefix of the names is sorted.
  const std::vector specs = {tied("z.head", {4, 2}, "m.embed"), tied("a.head", {4, 2}, "n.embed"),
                             spec_of("n.embed", {4, 2}, 1),     spec_of("m.embed", {4, 2}),
                             tied("k.head", {4, 2}, "m.embed"), tied("b.head", {4, 2}, "n.embed")};
  const Arena arena(specs, kFp32Types, Group());
  EXPECT_EQ(arena.parameters().size(), 2U);
  EXPECT_EQ(&arena.parameter("z.head"), &arena.parameter("m.embed"));
  EXPECT_EQ(&arena.parameter("k.head"), &arena.parameter("m.embed"));
  EXPECT_EQ(&arena.parameter("a.head"), &arena.parameter("n.embed"));
  EXPECT_EQ(&arena.parameter("b.head"), &arena.parameter("n.embed"));
  EXPECT_EQ(arena.parameter_count(), 16);
}

TEST(Arena, NamesTheCulprit) {
  const auto build = [](std::vector<ParameterSpec> specs) {
    return message_of([&] { const Arena arena(specs, kFp32Types, Group()); });
  };
  EXPECT_THAT(build({spec_of("w", {2}), spec_of("w", {3})}), testing::HasSubstr("'w'"));
  EXPECT_THAT(build({spec_of("w", {2}), tied("v", {2}, "absent")}), testing::HasSubstr("'absent'"));
  EXPECT_THAT(build({spec_of("w", {2}), tied("v", {3}, "w")}), testing::HasSubstr("'v'"));
  EXPECT_THAT(build({spec_of("w", {2}), tied("w", {2}, "w")}), testing::HasSubstr("'w'"));
  const std::vector specs = {spec_of("w", {2})};
  const Arena arena(specs, kFp32Types, Group());
  EXPECT_THAT(message_of([&] { (void)arena.parameter("x"); }), testing::HasSubstr("'x'"));
}

TEST(Arena, HoldsNothingWithoutParameters) {
  const Arena arena({}, kFp32Types, Group());
  EXPECT_EQ(arena.units(), 0);
  EXPECT_EQ(arena.parameter_count(), 0);
  EXPECT_EQ(arena.gradients(0, 0).numel(), 0);
}

TEST(Arena, StateStoragesAreZeroAndViewedByShard) {
  const std::vector specs = {spec_of("a", {40}, 0), spec_of("b", {3, 2}, 1)};
  Arena arena(specs, kBf16Types, Group());
  ASSERT_EQ(arena.local_shards().size(), 2U);
  EXPECT_EQ(arena.bytes(Storage::kState), 0);
  const at::Tensor state = arena.allocate_state();
  EXPECT_EQ(state.scalar_type(), at::kFloat);
  EXPECT_EQ(state.numel(), arena.masters(0, 2).numel());
  EXPECT_EQ(arena.bytes(Storage::kState), state.numel() * 4);
  EXPECT_EQ(state.count_nonzero().item<std::int64_t>(), 0);
  const at::Tensor view = arena.view_of(1, state);
  EXPECT_EQ(view.sizes(), at::IntArrayRef({6}));
  EXPECT_TRUE(is_aligned(view));
  view.fill_(1);
  EXPECT_EQ(state.sum().item<float>(), 6);
}

TEST(Arena, AShardIsAllOfItsParameterWhereNothingIsCut) {
  const std::vector specs = {spec_of("a", {40}, 0), spec_of("b", {3, 2}, 1)};
  for (const NumericTypes types : {kFp32Types, kBf16Types}) {
    const Arena arena(specs, types, Group());
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const LocalShard& shard = arena.local_shards()[i];
      const Parameter& parameter = *arena.parameters()[i];
      EXPECT_EQ(shard.parameter, i);
      EXPECT_EQ(shard.begin, 0);
      EXPECT_EQ(shard.count, parameter.spec().local_count());
      EXPECT_EQ(shard.master.const_data_ptr(), parameter.master().const_data_ptr());
      EXPECT_EQ(shard.working_weight.const_data_ptr(), parameter.working_weight().const_data_ptr());
      EXPECT_EQ(shard.gradient.const_data_ptr(), parameter.gradient().const_data_ptr());
    }
  }
}

TEST(Arena, PreciseParametersKeepTheMastersType) {
  std::vector specs = {spec_of("norm", {40}), spec_of("w", {40})};
  specs[0].keep_fp32 = true;
  const Arena arena(specs, kBf16Types, Group());
  const Parameter& norm = arena.parameter("norm");
  EXPECT_EQ(norm.working_weight().const_data_ptr(), norm.master().const_data_ptr());
  EXPECT_EQ(arena.parameter("w").working_weight().scalar_type(), at::kBFloat16);
}

// A shard group, in which no rank ever sends anything.
Sharding sharding_of(int stage, int rank, int ranks, int microbatches = 1) {
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  const Group group("data", members, rank, 0, std::make_shared<test::SilentEngine>(), 0, {});
  return {.stage = stage, .shard = group, .microbatches_per_step = microbatches};
}

TEST(Arena, NamesWhatZeroHasTakenAway) {
  const std::vector specs = {spec_of("w", {200, 300})};
  for (const NumericTypes types : {kFp32Types, kBf16Types}) {
    Arena arena(specs, types, sharding_of(3, 1, 2));
    Parameter& w = arena.parameter("w");
    for (const auto& look :
         std::vector<std::function<void()>>{[&] { (void)w.working_weight(); },
                                            [&] { (void)w.master(); }, [&] { (void)w.gradient(); },
                                            [&] {
                                              w.add_gradient(at::ones({200, 300}));
                                            }}) {
      EXPECT_THAT(message_of(look), testing::HasSubstr("'w'"));
    }
    EXPECT_THROW((void)arena.masters(0, 1), InternalError);
    EXPECT_THROW((void)arena.gradients(0, 1), InternalError);
  }
}

TEST(Arena, GivesMemoryToABucket) {
  std::vector specs = {spec_of("norm", {40}), spec_of("w", {200, 300}), spec_of("late", {7}, 1)};
  specs[0].keep_fp32 = true;
  Arena arena(specs, kBf16Types, sharding_of(3, 0, 2));
  const Bucket& bucket = arena.layout().buckets()[0];
  const at::Tensor values = at::zeros({bucket.working_bytes()}, at::kByte);
  const at::Tensor gradients = at::zeros({bucket.count()});
  arena.set_working_weights(bucket, values);
  arena.set_gradients(bucket, gradients);
  EXPECT_EQ(arena.parameter("norm").working_weight().scalar_type(), at::kFloat);
  EXPECT_EQ(arena.parameter("w").working_weight().scalar_type(), at::kBFloat16);
  arena.parameter("w").working_weight().fill_(1);
  arena.parameter("norm").working_weight().fill_(1);
  EXPECT_EQ(values.count_nonzero().item<std::int64_t>(), 2 * 60000 + 2 * 40);
  arena.parameter("w").add_gradient(at::ones({200, 300}));
  EXPECT_EQ(gradients.sum().item<float>(), 60000);
  EXPECT_THROW((void)arena.parameter("late").working_weight(), InternalError);
  arena.set_working_weights(bucket, {});
  EXPECT_THROW((void)arena.parameter("w").working_weight(), InternalError);
}

TEST(Arena, DrawsTheSameValuesHoweverItIsCut) {
  std::vector specs = {spec_of("norm", {40}), spec_of("w", {200, 300}), spec_of("v", {99, 98}, 1)};
  specs[0].keep_fp32 = true;
  for (const NumericTypes types : {kFp32Types, kBf16Types}) {
    Arena whole(specs, types, Group());
    whole.initialize(5);
    for (const int stage : {1, 2, 3}) {
      for (const int rank : {0, 1, 2}) {
        Arena arena(specs, types, sharding_of(stage, rank, 3));
        arena.initialize(5);
        for (const LocalShard& shard : arena.local_shards()) {
          const Parameter& same = *whole.parameters()[shard.parameter];
          const auto part = [&](const at::Tensor& tensor) {
            return tensor.flatten().narrow(0, shard.begin, shard.count);
          };
          EXPECT_TRUE(shard.master.equal(part(same.master())));
          EXPECT_TRUE(shard.working_weight.equal(part(same.working_weight())));
        }
        for (std::size_t i = 0; stage < 3 && i < specs.size(); ++i) {
          EXPECT_TRUE(arena.parameters()[i]->working_weight().equal(
              whole.parameters()[i]->working_weight()));
        }
      }
    }
  }
}

// Bytes per rank of Y parameters cut among N ranks, as in docs/zero.md, with `state` values of the
// optimiser for each.
double expected_bytes(int stage, bool mixed, double y, double n, int state) {
  const double value = mixed ? 2 : 0;  // else the master serves
  const double masters = stage == 0 || (!mixed && stage < 3) ? 4 * y : 4 * y / n;
  return (stage < 3 ? value * y : value * y / n) + masters + (stage < 2 ? 4 * y : 4 * y / n) +
         4 * state * (stage == 0 ? y : y / n);
}

TEST(Arena, KeepsWhatTheStageSays) {
  std::vector<ParameterSpec> specs = {spec_of("embed", {1000, 384}, 0)};
  for (int unit = 1; unit <= 6; ++unit) {
    specs.push_back(spec_of("a" + std::to_string(unit), {384, 384}, unit));
    specs.push_back(spec_of("b" + std::to_string(unit), {384, 1024}, unit));
    specs.push_back(spec_of("c" + std::to_string(unit), {384}, unit));
  }
  for (const NumericTypes types : {kFp32Types, kBf16Types}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (int rank = 0; rank < 4; ++rank) {
        Arena arena(specs, types, sharding_of(stage, rank, 4));
        for (int i = 0; i < 2; ++i) (void)arena.allocate_state();
        double bytes = 0;
        for (const Storage kind :
             {Storage::kWorkingWeights, Storage::kMasters, Storage::kGradients, Storage::kState}) {
          bytes += static_cast<double>(arena.bytes(kind));
        }
        const auto y = static_cast<double>(arena.parameter_count());
        const double expected = expected_bytes(stage, types == kBf16Types, y, 4, 2);
        // A shard is a chunk larger than its share at most.
        EXPECT_NEAR(bytes, expected, 18.0 * 2 * kChunkElements) << stage << " " << rank;
      }
    }
  }
}

TEST(Arena, KeepsWholeGradientsWhileMicrobatchesAreAddedUp) {
  const std::vector specs = {spec_of("w", {200, 300})};
  const Arena one(specs, kFp32Types, sharding_of(2, 0, 2, 1)),
      two(specs, kFp32Types, sharding_of(2, 0, 2, 2));
  EXPECT_FALSE(one.keeps_gradients());
  EXPECT_TRUE(two.keeps_gradients());
  EXPECT_EQ(two.bytes(Storage::kGradients), two.layout().elements() * 4);
  EXPECT_EQ(one.bytes(Storage::kGradients), one.layout().own_elements() * 4);
}

TEST(Arena, TellsWhatAUnitComputesWith) {
  std::vector specs = {spec_of("embed", {300, 300}, 0), spec_of("w", {300, 300}, 2),
                       spec_of("norm", {300}, 3), tied("head", {300, 300}, "embed")};
  specs[3].unit = 3;
  const Arena arena(specs, kFp32Types, sharding_of(3, 0, 2));
  const auto buckets = [&](int unit) {
    const auto found = arena.buckets_of(unit);
    return std::vector<std::size_t>(found.begin(), found.end());
  };
  EXPECT_EQ(arena.layout().buckets().size(), 3U);
  EXPECT_THAT(buckets(0), testing::ElementsAre(0));
  EXPECT_THAT(buckets(1), testing::IsEmpty());
  EXPECT_THAT(buckets(2), testing::ElementsAre(1));
  EXPECT_THAT(buckets(3), testing::ElementsAre(0, 2));
  EXPECT_THAT(buckets(9), testing::IsEmpty());
}

TEST(Arena, PublishesMastersRoundedToNearest) {
  const std::vector specs = {spec_of("w", {100})};
  Arena arena(specs, kBf16Types, Group());
  arena.initialize(7);
  const Parameter& w = arena.parameter("w");
  EXPECT_GT(w.master().abs().max().item<float>(), 0);
  EXPECT_TRUE(w.working_weight().equal(w.master().to(at::kBFloat16)));
  w.master().mul_(3);
  arena.publish();
  EXPECT_TRUE(w.working_weight().equal(w.master().to(at::kBFloat16)));
}

TEST(Arena, ANewStepReleasesEveryGradient) {
  const std::vector specs = {spec_of("a", {2}), spec_of("b", {2})};
  Arena arena(specs, kFp32Types, Group());
  arena.parameter("a").claim_zeroed();
  arena.release_gradients();
  EXPECT_FALSE(arena.parameter("a").claimed());
  EXPECT_FALSE(arena.parameter("b").claimed());
}

}  // namespace
}  // namespace troika
