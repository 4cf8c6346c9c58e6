// What one rank knows of the job it belongs to: the mesh, its coordinates, and the groups it
// belongs to.
#pragma once

#include <troika/base/error.h>
#include <troika/comm/engines.h>
#include <troika/comm/group.h>
#include <troika/mesh/mesh.h>
#include <troika/observe/trace.h>
#include <troika/recipe/recipe.h>
#include <troika/rendezvous/rendezvous.h>
#include <troika/session/consensus.h>
#include <troika/session/session.h>
#include <troika/train/trainer_context.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troika {

// Collective: waits for all ranks and checks that they have the same recipe (resolved: data axis
// and precision are fixed). Throws RendezvousError.
[[nodiscard]] Rendezvous join_rendezvous(World world, const Recipe& recipe);

class Job {
 public:
  // Collective: connects the ranks of the rendezvous. `folder` takes the flight recorders. Throws
  // RendezvousError, UsageError.
  Job(Rendezvous rendezvous, const Recipe& recipe, const std::filesystem::path& folder);

  [[nodiscard]] int rank() const { return session_.rank(); }
  [[nodiscard]] int size() const { return session_.size(); }
  [[nodiscard]] const std::vector<Member>& members() const { return session_.members(); }
  [[nodiscard]] const Session& session() const { return session_; }
  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  // Returns the group of all ranks, in order.
  [[nodiscard]] const Group& world() const { return session_.world(); }
  [[nodiscard]] const Group& data() const { return groups_.data; }
  [[nodiscard]] const Group& tensor() const { return groups_.tensor; }
  [[nodiscard]] const Group& pipeline() const { return groups_.pipeline; }
  [[nodiscard]] const Group& shard() const { return groups_.shard; }
  [[nodiscard]] const Group& replicate() const { return groups_.replicate; }
  [[nodiscard]] const Group& embedding() const { return groups_.embedding; }
  [[nodiscard]] const Group& islands() const { return groups_.islands; }
  // Returns the context for a trainer; this must outlive the trainer.
  [[nodiscard]] TrainerContext context() const;
  [[nodiscard]] Trace& trace() const { return *trace_; }

  // Returns the deadline of one collective of a step.
  [[nodiscard]] Deadline deadline() const { return session_.deadline(); }
  [[nodiscard]] Seconds timeout() const { return session_.timeout(); }
  // Returns the deadline for ranks that prepare themselves, or read their data, at their own pace.
  [[nodiscard]] Deadline start_deadline() const { return Deadline::in(start_timeout_); }
  [[nodiscard]] Seconds start_patience() const { return start_timeout_; }
  // Returns the deadline for ranks that wait while files are written.
  [[nodiscard]] Deadline storage_deadline() const { return Deadline::in(storage_timeout_); }
  [[nodiscard]] Seconds storage_timeout() const { return storage_timeout_; }

  // Collective: returns the `value` of each rank, by rank.
  [[nodiscard]] std::vector<std::string> gather(std::string_view text,
                                                std::string_view label) const {
    return session_.gather(text, label);
  }
  [[nodiscard]] std::vector<std::int64_t> gather(std::int64_t value, const Call& call) const;
  // Collective: throws the same error on every rank where any of them has a failure
  // (session/consensus.h).
  void throw_on_all_ranks(const std::optional<Failure>& own, std::string_view label) const {
    troika::throw_on_all_ranks(session_, own, label, NameRanks::kUnlessAll);
  }
  // Tells the other ranks why this rank has failed, in any group they wait in. Any thread may call
  // it.
  void abort(const Error& error) const;
  // Leaves the job. Collective, at the end of a job that succeeded.
  void leave();

 private:
  [[nodiscard]] Group make_group(std::string_view axis, const std::vector<int>& ranks) const;

  Seconds start_timeout_, storage_timeout_;
  Mesh mesh_;
  std::shared_ptr<Trace> trace_;
  Session session_;
  at::Device device_;
  RankGroups groups_;
};

// Returns the mesh of a resolved recipe.
[[nodiscard]] Mesh mesh_of(const Recipe& recipe);

// Returns the place of a rank among those that share out the samples: data axes, island by island.
[[nodiscard]] int replica_of(const Mesh& mesh, int rank);

// World ranks of the groups that a rank of a resolved recipe's job is in, ascending. A group has
// one rank where its axis has no other.
struct GroupRanks {
  std::vector<int> data, tensor, pipeline, shard, replicate, embedding, island, islands;
};
// Returns true if the first and the last stage of the pipeline lie on different ranks and share a
// tied weight.
[[nodiscard]] bool has_embedding_group(const Recipe& recipe);
[[nodiscard]] GroupRanks groups_of(const Recipe& recipe, int rank);
// Returns the order that reductions need. Replicas update themselves from sums over their own
// groups, and these sums must have the same bits. An engine that reduces host by host gives the
// same bits to groups that are spread over the hosts in the same pattern. `hosts`, by world rank,
// are equal for ranks that share one.
[[nodiscard]] EngineOptions::ReductionOrder reduction_order_of(
    const Recipe& recipe, const std::vector<std::string>& hosts);

}  // namespace troika
