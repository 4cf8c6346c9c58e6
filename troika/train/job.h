// What one rank knows of the job it belongs to: the mesh, its place in it, and the groups it talks
// in.
#pragma once

#include <troika/base/error.h>
#include <troika/comm/engines.h>
#include <troika/comm/group.h>
#include <troika/config/recipe.h>
#include <troika/mesh/mesh.h>
#include <troika/observe/trace.h>
#include <troika/rendezvous/rendezvous.h>
#include <troika/session/session.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace troika {

// Collective: the ranks meet and agree on the recipe (resolved: data axis and precision are fixed).
// Throws RendezvousError.
[[nodiscard]] Rendezvous meet(World world, const Recipe& recipe);

class Job {
 public:
  // Collective: connects the ranks that have met. `folder` takes the flight recorders. Throws
  // RendezvousError, UsageError.
  Job(Rendezvous rendezvous, const Recipe& recipe, const std::filesystem::path& folder);

  [[nodiscard]] int rank() const { return session_.rank(); }
  [[nodiscard]] int size() const { return session_.size(); }
  [[nodiscard]] const std::vector<Member>& members() const { return session_.members(); }
  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  // All ranks, in order.
  [[nodiscard]] const Group& world() const { return session_.world(); }
  // The ranks that differ from this one along one axis only.
  [[nodiscard]] const Group& data() const { return data_; }
  [[nodiscard]] const Group& tensor() const { return tensor_; }
  [[nodiscard]] const Group& pipeline() const { return pipeline_; }
  // Parts of the data axis: what ZeRO cuts the parameters among, and the ranks with the same place
  // in their own such groups.
  [[nodiscard]] const Group& shard() const { return shard_; }
  [[nodiscard]] const Group& replicate() const { return replicate_; }
  // This rank's first and last pipeline stage, where they lie on different ranks and share a tied
  // weight; of one elsewhere.
  [[nodiscard]] const Group& tie() const { return tie_; }
  [[nodiscard]] Trace& trace() const { return *trace_; }

  // For one collective of a step.
  [[nodiscard]] Deadline deadline() const { return session_.deadline(); }
  [[nodiscard]] Seconds timeout() const { return session_.timeout(); }
  // For ranks that prepare themselves, or read their data, at their own pace.
  [[nodiscard]] Deadline start_deadline() const { return Deadline::in(start_timeout_); }
  // For ranks that wait while files are written.
  [[nodiscard]] Deadline storage_deadline() const { return Deadline::in(storage_timeout_); }

  // Collective: `value` of each rank, by rank.
  [[nodiscard]] std::vector<std::int64_t> gather(std::int64_t value, const Call& call) const;
  // This rank has failed: the others hear why, whatever group they wait in. Any thread.
  void abort(const Error& error) const;
  // Collective, at the end of a job that went well.
  void leave();

 private:
  [[nodiscard]] Group make_group(std::string_view axis, const std::vector<int>& ranks) const;

  Seconds start_timeout_, storage_timeout_;
  Mesh mesh_;
  std::shared_ptr<Trace> trace_;
  Session session_;
  Group data_, tensor_, pipeline_, shard_, replicate_, tie_;
};

// The mesh that a resolved recipe asks for.
[[nodiscard]] Mesh mesh_of(const Recipe& recipe);

// World ranks of the groups that a rank of a resolved recipe's job is in, ascending; of one where
// there is nobody to talk to.
struct GroupRanks {
  std::vector<int> data, tensor, pipeline, shard, replicate, tie;
};
// Whether the first and the last stage of the pipeline, on different ranks, share a tied weight.
[[nodiscard]] bool ties_stages(const Recipe& recipe);
[[nodiscard]] GroupRanks groups_of(const Recipe& recipe, int rank);
// How sums have to be folded. What several ranks hold alike, each of them updates by itself, from
// sums over groups of its own, which have to have the same bits; an engine that folds host by host
// gives them to groups that are spread over the hosts in the same way. `hosts`, by world rank:
// equal for those who share one.
[[nodiscard]] EngineOptions::Fold fold_of(const Recipe& recipe,
                                          const std::vector<std::string>& hosts);

}  // namespace troika
