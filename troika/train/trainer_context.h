// What a trainer needs of the ranks around it. A Job gives it; a test, or a program that knows its
// groups, makes its own.
#pragma once

#include <troika/comm/group.h>
#include <troika/observe/trace.h>
#include <troika/optim/options.h>
#include <troika/sync/replica_sync.h>

#include <functional>
#include <memory>
#include <optional>

namespace troika {

// The groups that one rank is in. A group has one rank where its axis has no other.
struct RankGroups {
  Group world;  // all ranks, in order
  // The groups of ranks that differ from this rank along one axis only.
  Group data, tensor, pipeline;
  // Parts of the data axis: the ranks among which ZeRO cuts the parameters, and the ranks with the
  // same place in their own such groups.
  Group shard, replicate;
  // The ranks of the first and the last pipeline stage, where they differ and share a tied weight.
  Group embedding;
  // All ranks of this rank's island, whose replicas stay equal, and the ranks with its place in
  // other islands. The groups above but `world` are of one island.
  Group island, islands;
};

struct TrainerContext {
  RankGroups groups = {};
  Seconds timeout = Seconds(60);  // for one collective
  at::Device device = at::kCPU;   // that this rank computes on
  Trace* trace = nullptr;
  // Makes the sync that keeps the replicas together, over the parameters that this rank holds.
  // Empty: that of the recipe.
  std::function<std::unique_ptr<ReplicaSync>(Arena&, const TrainerContext&)> make_sync = {};
  // Updates the parameters in the place of the recipe's, which workers have for steps of their own.
  std::optional<OptimizerOptions> optimizer = {};
};

}  // namespace troika
