// What compression keeps from step to step, as a part of the state of a run: what has not been sent
// yet of each parameter, and the factors of PowerSGD.
#pragma once

#include <troika/comm/group.h>
#include <troika/param/state_dict.h>
#include <troika/sync/replica_sync.h>

#include <string>
#include <string_view>
#include <vector>

namespace troika {

// A parameter, or this rank's shard of it.
struct CompressedPart {
  std::string parameter;  // global name
  ShardDescriptor shard;  // `owned` is what this replica's rank writes of its own errors
  at::Tensor error;       // flat, [shard.count]; undefined where all is sent
  at::Tensor factor;      // equal on all replicas; undefined where there is none
};

// Saves and loads them. Every replica's errors are a tensor of their own,
// "replica.R.compress.error.NAME". Their sum, "compress.error.NAME", goes on where there are
// another number of replicas: all have an equal part of it, so that nothing is lost. The kind of
// replica may be "island".
class CompressionState {
 public:
  CompressionState(std::string_view kind, Group replicas)
      : kind_(kind), replicas_(std::move(replicas)) {}

  // Collective over the replicas.
  void save(StateDict& state, const std::vector<CompressedPart>& parts, const Call& call) const;
  void add_places(StateDict& state, const std::vector<CompressedPart>& parts,
                  const HasTensor& has) const;
  // Call once values have been written to the places.
  void load(const StateDict& state, const std::vector<CompressedPart>& parts) const;

 private:
  [[nodiscard]] std::string error_name(int replica, const std::string& parameter) const;

  std::string kind_;
  Group replicas_;
};

}  // namespace troika
