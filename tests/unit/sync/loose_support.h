// Replicas that go their own ways, as members of a group in memory: each has a model of two
// parameters in fp64, and takes steps that a test draws by island and step.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/param/arena.h>
#include <troika/sync/flat_masters.h>
#include <troika/sync/kind.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "support/memory_group.h"

namespace troika::test {

constexpr std::int64_t kValues = 10;  // of both parameters
constexpr double kBound = 1e-12;

inline std::vector<ParameterSpec> two_parameters() {
  std::vector<ParameterSpec> specs(2);
  specs[0].name = "a";
  specs[0].shape = {3, 2};
  specs[1].name = "b";
  specs[1].shape = {4};
  return specs;
}

// What an island's optimiser changes in a step, counted from 0, [kValues].
inline at::Tensor update_of(int island, std::int64_t step) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * (island + 1) + step));
  return at::randn({kValues}, generator, at::kDouble);
}

// The weight of the targets that an island trains on in a step: unequal, and 0 at times.
inline double weight_of(int island, std::int64_t step) {
  return static_cast<double>((3 * island + 2 * step) % 5);
}

// What a test does with a step's sums, on the thread of an island.
using SeeSums = std::function<void(int island, std::int64_t step, const StepSums& sums)>;
using MakeSync = std::function<std::unique_ptr<ReplicaSync>(Arena&, const SyncGroups&)>;
// Returns what an island says in a step.
using PartOf = std::function<StepPart(int island, std::int64_t step)>;

inline StepPart part_of_weight(int island, std::int64_t step) {
  StepPart part;
  part.loss = LossTerms::of(1, weight_of(island, step));
  return part;
}

// Trains on islands of one rank. Returns the values after each step, by step and island.
inline std::vector<std::vector<at::Tensor>> train_islands(int islands, std::int64_t steps,
                                                          const MakeSync& make,
                                                          const PartOf& part = part_of_weight,
                                                          const SeeSums& see = {}) {
  std::vector<std::vector<at::Tensor>> values(
      static_cast<std::size_t>(steps), std::vector<at::Tensor>(static_cast<std::size_t>(islands)));
  run_members(islands, [&](const Group& group) {
    const at::NoGradGuard no_autograd;
    Arena arena(two_parameters(), NumericTypes{at::kDouble, at::kDouble}, Group());
    arena.initialize(1);
    SyncGroups groups;
    groups.world = groups.islands = group;
    const auto sync = make(arena, groups);
    const FlatMasters masters(arena);
    const int island = group.rank();
    for (std::int64_t step = 0; step < steps; ++step) {
      sync->begin_step(0, Seconds(60));
      sync->reduce(part(island, step));
      static_cast<void>(sync->finish());
      const StepSums sums = sync->sums();
      if (see) see(island, step, sums);
      at::Tensor now = masters.empty(kValues);
      masters.read({0, kValues}, now);
      masters.write({0, kValues}, now.add_(update_of(island, step)));
      arena.publish();
      sync->end_step(true);
      at::Tensor& after = values[static_cast<std::size_t>(step)][static_cast<std::size_t>(island)];
      after = masters.empty(kValues);
      masters.read({0, kValues}, after);
    }
  });
  return values;
}

// The values that all islands begin with.
inline at::Tensor first_values() {
  Arena arena(two_parameters(), NumericTypes{at::kDouble, at::kDouble}, Group());
  arena.initialize(1);
  const FlatMasters masters(arena);
  const at::Tensor values = masters.empty(kValues);
  masters.read({0, kValues}, values);
  return values;
}

inline double distance(const at::Tensor& one, const at::Tensor& other) {
  return (one - other).abs().max().item<double>();
}

}  // namespace troika::test
