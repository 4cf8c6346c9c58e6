// Islands that meet after steps of their own, against the arithmetic that local_sync.h states.
#include <gmock/gmock.h>
#include <troika/sync/local_sync.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "unit/sync/loose_support.h"

namespace troika::test {
namespace {

constexpr int kLocalIslands = 3;
constexpr std::int64_t kLocalSteps = 12;

// The same in one place. Without fragments an exchange ends in the step that begins it.
class Oracle {
 public:
  Oracle(const LocalOptions& options, int islands)
      : options_(options),
        anchor_(first_values()),
        momentum_(at::zeros({kValues}, at::kDouble)),
        weights_(static_cast<std::size_t>(islands)) {
    for (int i = 0; i < islands; ++i) values_.push_back(anchor_.clone());
  }

  void step(std::int64_t step) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const int island = static_cast<int>(i);
      values_[i] = values_[i] + update_of(island, step);
      weights_[i] += weight_of(island, step);
    }
    if (on_its_way_) finish();
    const std::int64_t place = (step + 1) % options_.every_steps;
    for (std::int64_t k = 0; k < options_.fragments; ++k) {
      if ((k + 1) * options_.every_steps / options_.fragments % options_.every_steps != place) {
        continue;
      }
      on_its_way_ = {k, values_, weights_};
      if (options_.fragments == 1) finish();
      break;
    }
    if (place == 0) weights_.assign(values_.size(), 0);
  }
  [[nodiscard]] const at::Tensor& values(std::size_t island) const { return values_[island]; }

 private:
  struct Sent {
    std::int64_t fragment;
    std::vector<at::Tensor> values;
    std::vector<double> weights;
  };

  void finish() {
    const Sent sent = *std::exchange(on_its_way_, std::nullopt);
    const std::int64_t size = kValues / options_.fragments;  // all alike here
    const auto part = [&](const at::Tensor& all) {
      return all.narrow(0, sent.fragment * size, size);
    };
    const at::Tensor x = part(anchor_);
    at::Tensor g = at::zeros({size}, at::kDouble);
    double weight = 0;
    for (std::size_t i = 0; i < sent.values.size(); ++i) {
      g = g + sent.weights[i] * (x - part(sent.values[i]));
      weight += sent.weights[i];
    }
    if (weight > 0) g = g / weight;
    if (options_.outer == Outer::kNesterov) {
      const at::Tensor m = part(momentum_);
      m.copy_(options_.outer_momentum * m + g);
      g = options_.outer_lr * (g + options_.outer_momentum * m);
    }
    x.sub_(g);
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const at::Tensor own = part(values_[i]);
      own.copy_(options_.fragments == 1 ? x : own + x - part(sent.values[i]));
    }
  }

  LocalOptions options_;
  at::Tensor anchor_, momentum_;
  std::vector<at::Tensor> values_;  // by island
  std::vector<double> weights_;     // of targets since the last round, by island
  std::optional<Sent> on_its_way_;
};

void expect_those_of_the_oracle(const LocalOptions& options, int ranks = 1,
                                std::int64_t resumed_after = -1) {
  const auto values = train_islands(
      kLocalIslands, kLocalSteps,
      [&](Arena& arena, const SyncGroups& groups) {
        return std::make_unique<LocalSync>(arena, options, groups);
      },
      part_of_weight, {}, ranks, resumed_after);
  Oracle oracle(options, kLocalIslands);
  for (std::int64_t step = 0; step < kLocalSteps; ++step) {
    oracle.step(step);
    for (std::size_t island = 0; island < kLocalIslands; ++island) {
      EXPECT_LT(distance(values[static_cast<std::size_t>(step)][island], oracle.values(island)),
                kBound)
          << "step " << step << ", island " << island;
    }
  }
}

TEST(LocalSync, IslandsMeetAtTheirWeightedMean) {
  expect_those_of_the_oracle({.every_steps = 3, .island = 1});
  expect_those_of_the_oracle({.every_steps = 1, .island = 1});
}

TEST(LocalSync, AveragesMoreThanOneCollectiveTakes) {
  constexpr std::int64_t kCount = (std::int64_t{16} << 20) + 5;
  const IslandGroups all_groups(2, 1);
  run_members(2, [&](const Group& world) {
    const SyncGroups groups = all_groups.of(world);
    Arena arena(two_parameters(), NumericTypes{at::kDouble, at::kDouble}, groups.island);
    const LocalSync sync(arena, {.island = 1}, groups);
    const at::Tensor values = at::full({kCount}, 1 + 2 * groups.islands.rank(), at::kFloat);
    sync.average(values);
    EXPECT_TRUE(values.eq(2).all().item<bool>());
    const at::Tensor matrix = at::full({3, 2}, 1 + 2 * groups.islands.rank(), at::kFloat);
    sync.average(matrix);
    EXPECT_TRUE(matrix.eq(2).all().item<bool>());
  });
}

TEST(LocalSync, TheOuterStepIsNesterovsOfTheWeightedMean) {
  expect_those_of_the_oracle({.every_steps = 4,
                              .outer = Outer::kNesterov,
                              .outer_lr = 0.7,
                              .outer_momentum = 0.9,
                              .island = 1});
}

TEST(LocalSync, FragmentsAreOnTheirWayDuringAStep) {
  for (const Outer outer : {Outer::kAverage, Outer::kNesterov}) {
    expect_those_of_the_oracle({.every_steps = 4, .outer = outer, .fragments = 2, .island = 1});
    expect_those_of_the_oracle({.every_steps = 5, .outer = outer, .fragments = 5, .island = 1});
  }
}

// The ranks of an island exchange a part each, which need not be alike, and gather the rest.
TEST(LocalSync, IslandsOfSeveralRanksMeetAsThoseOfOne) {
  for (const int ranks : {2, 3}) {
    expect_those_of_the_oracle({.every_steps = 3, .island = ranks}, ranks);
    expect_those_of_the_oracle(
        {.every_steps = 4, .outer = Outer::kNesterov, .fragments = 2, .island = ranks}, ranks);
  }
}

// In the middle of a round, at its end, and with a fragment on its way.
TEST(LocalSync, GoesOnFromWhatItHasSaved) {
  for (const std::int64_t after : {1, 2, 3, 5}) {
    expect_those_of_the_oracle({.every_steps = 3, .island = 1}, 1, after);
    expect_those_of_the_oracle({.every_steps = 4,
                                .outer = Outer::kNesterov,
                                .outer_lr = 0.7,
                                .outer_momentum = 0.9,
                                .fragments = 2,
                                .island = 2},
                               2, after);
  }
}

// Where no island has trained on anything, nothing has changed.
TEST(LocalSync, WithoutATargetTheAnchorStays) {
  const auto values = train_islands(
      2, 4,
      [](Arena& arena, const SyncGroups& groups) {
        return std::make_unique<LocalSync>(arena, LocalOptions{.every_steps = 2, .island = 1},
                                           groups);
      },
      [](int, std::int64_t) { return StepPart(); });
  for (const std::size_t step : {1, 3}) {
    for (const at::Tensor& each : values[step]) EXPECT_EQ(distance(each, first_values()), 0);
  }
}

// Until islands go their own ways, losses and weights are those of all.
TEST(LocalSync, IslandsActAsOneBeforeTheyGoTheirOwnWays) {
  std::mutex mutex;
  std::vector<double> weights(4, 0);
  static_cast<void>(train_islands(
      2, 4,
      [](Arena& arena, const SyncGroups& groups) {
        return std::make_unique<LocalSync>(
            arena, LocalOptions{.every_steps = 3, .start_after = 2, .island = 1}, groups);
      },
      part_of_weight,
      [&](int island, std::int64_t step, const StepSums& sums) {
        const std::lock_guard lock(mutex);
        if (island == 1) weights[static_cast<std::size_t>(step)] = sums.weight;
      }));
  for (std::int64_t step = 0; step < 4; ++step) {
    const double own = weight_of(1, step), all = own + weight_of(0, step);
    EXPECT_EQ(weights[static_cast<std::size_t>(step)], step < 2 ? all : own) << step;
  }
}

// Those of an island's ranks have been summed before. Once islands go their own ways, an island's
// gradients are its own.
TEST(LocalSync, GradientsAreThoseOfAllIslandsBeforeTheyGoTheirOwnWays) {
  constexpr int kIslands = 2, kRanks = 2;
  const IslandGroups all_groups(kIslands, kRanks);
  const auto gradient_of = [](int island) { return update_of(island, 7); };
  run_members(kIslands * kRanks, [&](const Group& world) {
    const at::NoGradGuard no_autograd;
    const SyncGroups groups = all_groups.of(world);
    Arena arena(two_parameters(), NumericTypes{at::kDouble, at::kDouble}, groups.island);
    arena.initialize(1);
    LocalSync sync(arena, {.every_steps = 3, .start_after = 1, .island = kRanks}, groups);
    const FlatMasters masters(arena);
    const int island = groups.islands.rank();
    const double share = groups.island.rank() == 0 ? 0.25 : 0.75;
    for (std::int64_t step = 0; step < 2; ++step) {
      sync.begin_step(0, Seconds(60));
      arena.release_gradients();
      sync.reduce(part_of_weight(island, step));
      std::int64_t begin = 0;
      for (const auto& parameter : arena.parameters()) {
        const at::Tensor& like = parameter->master();
        parameter->add_gradient(
            (gradient_of(island) * share).narrow(0, begin, like.numel()).view_as(like));
        begin += like.numel();
      }
      static_cast<void>(sync.finish());
      static_cast<void>(sync.sums());
      const at::Tensor found = masters.empty(kValues);
      masters.read_gradients({0, kValues}, found);
      const at::Tensor expected = step == 0 ? gradient_of(0) + gradient_of(1) : gradient_of(island);
      EXPECT_LT(distance(found, expected), kBound) << "step " << step << ", island " << island;
      sync.end_step(true);
    }
  });
}

}  // namespace
}  // namespace troika::test
