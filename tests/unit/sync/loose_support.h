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
#include <map>
#include <memory>
#include <mutex>
#include <string>
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

// Returns the change that an island's optimiser makes in a step, counted from 0, [kValues].
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

// The groups of islands of equally many ranks: the world's ranks lie island by island.
class IslandGroups {
 public:
  IslandGroups(int islands, int ranks) : islands_(islands), ranks_(ranks) {
    for (int i = 0; i < islands; ++i) inside_.push_back(std::make_shared<MemoryHub>(ranks));
    for (int i = 0; i < ranks; ++i) between_.push_back(std::make_shared<MemoryHub>(islands));
  }
  [[nodiscard]] SyncGroups of(const Group& world) const {
    const int island = world.rank() / ranks_, rank = world.rank() % ranks_;
    SyncGroups groups;
    groups.world = world;
    groups.islands = group_of(between_[static_cast<std::size_t>(rank)], islands_, island);
    if (ranks_ > 1) {
      groups.island = group_of(inside_[static_cast<std::size_t>(island)], ranks_, rank);
    }
    return groups;
  }

 private:
  int islands_, ranks_;
  std::vector<std::shared_ptr<MemoryHub>> inside_, between_;
};

// Returns a sync that goes on from what `sync` saves, as a run does that is resumed. Collective
// over the world: a saved state has the tensors of all.
inline std::unique_ptr<ReplicaSync> resumed(const ReplicaSync& sync, const MakeSync& make,
                                            Arena& arena, const SyncGroups& groups) {
  StateDict saved;
  sync.save(saved);
  std::map<std::string, at::Tensor> kept;
  for (const StateTensor& each : saved.tensors()) kept[each.name] = each.tensor.clone();
  auto made = make(arena, groups);
  StateDict places;
  const std::string own = "island." + std::to_string(groups.islands.rank()) + ".";
  made->add_places(places, [&](std::string name) {
    for (int island = 0; island < groups.islands.size(); ++island) {
      const std::string other = "island." + std::to_string(island) + ".";
      if (name.starts_with(other)) name.replace(0, other.size(), own);
    }
    return kept.contains(name);
  });
  EXPECT_EQ(std::ssize(places.tensors()), std::ssize(kept));
  for (const StateTensor& each : places.tensors()) at::Tensor(each.tensor).copy_(kept[each.name]);
  for (const auto& [name, number] : saved.numbers()) places.set(name, number);
  made->load(places);
  made->refresh();
  return made;
}

// Trains on islands, whose ranks divide each weight unequally. Returns the values after each step,
// by step and island, and fails where the ranks of an island differ. After step
// `resumed_after` the run is saved and resumed.
inline std::vector<std::vector<at::Tensor>> train_islands(int islands, std::int64_t steps,
                                                          const MakeSync& make,
                                                          const PartOf& part = part_of_weight,
                                                          const SeeSums& see = {}, int ranks = 1,
                                                          std::int64_t resumed_after = -1) {
  std::vector<std::vector<at::Tensor>> values(
      static_cast<std::size_t>(steps), std::vector<at::Tensor>(static_cast<std::size_t>(islands)));
  std::vector<std::vector<at::Tensor>> of_last = values;  // the last rank of each island
  const IslandGroups all_groups(islands, ranks);
  run_members(islands * ranks, [&](const Group& world) {
    const at::NoGradGuard no_autograd;
    const SyncGroups groups = all_groups.of(world);
    Arena arena(two_parameters(), NumericTypes{at::kDouble, at::kDouble}, groups.island);
    arena.initialize(1);
    auto sync = make(arena, groups);
    const FlatMasters masters(arena);
    const int island = groups.islands.rank(), rank = groups.island.rank();
    for (std::int64_t step = 0; step < steps; ++step) {
      sync->begin_step(0, Seconds(60));
      StepPart own = part(island, step);
      if (ranks > 1) own.loss.weight = own.loss.weight * (rank == 0 ? 0.25 : 0.75 / (ranks - 1));
      sync->reduce(own);
      static_cast<void>(sync->finish());
      const StepSums sums = sync->sums();
      if (see) see(island, step, sums);
      at::Tensor now = masters.empty(kValues);
      masters.read({0, kValues}, now);
      masters.write({0, kValues}, now.add_(update_of(island, step)));
      arena.publish();
      sync->end_step(true);
      now = masters.empty(kValues);
      masters.read({0, kValues}, now);
      auto& kept = rank == 0 ? values : of_last;
      if (rank == 0 || rank == ranks - 1) {
        kept[static_cast<std::size_t>(step)][static_cast<std::size_t>(island)] = now;
      }
      if (step == resumed_after) sync = resumed(*sync, make, arena, groups);
    }
  });
  for (std::size_t step = 0; ranks > 1 && step < values.size(); ++step) {
    for (std::size_t island = 0; island < values[step].size(); ++island) {
      EXPECT_TRUE(values[step][island].equal(of_last[step][island])) << step << " " << island;
    }
  }
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
