// What one rank knows of the job it belongs to: the mesh, its place in it, and the groups it talks
// in.
#pragma once

#include <troika/comm/group.h>
#include <troika/config/recipe.h>
#include <troika/mesh/mesh.h>
#include <troika/observe/recorder.h>
#include <troika/observe/trace.h>
#include <troika/rendezvous/rendezvous.h>
#include <troika/rendezvous/store_watch.h>

#include <cstdint>
#include <filesystem>
#include <memory>
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

  [[nodiscard]] int rank() const { return rendezvous_.world().rank; }
  [[nodiscard]] int size() const { return rendezvous_.world().size; }
  [[nodiscard]] const std::vector<Member>& members() const { return rendezvous_.members(); }
  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  // All ranks, in order.
  [[nodiscard]] const Group& world() const { return world_; }
  // Position along the data axis.
  [[nodiscard]] const Group& data() const { return data_; }
  [[nodiscard]] Trace& trace() const { return *observers_.trace; }

  // For one collective of a step.
  [[nodiscard]] Deadline deadline() const { return Deadline::in(timeout_); }
  [[nodiscard]] Seconds timeout() const { return timeout_; }
  // For ranks that prepare themselves, or read their data, at their own pace.
  [[nodiscard]] Deadline start_deadline() const { return Deadline::in(start_timeout_); }
  // For ranks that wait while files are written.
  [[nodiscard]] Deadline storage_deadline() const { return Deadline::in(storage_timeout_); }

  // Collective: `value` of each rank, by rank.
  [[nodiscard]] std::vector<std::int64_t> gather(std::int64_t value, const Call& call) const;
  // Collective, at the end of a job that went well.
  void leave();

 private:
  Seconds timeout_, start_timeout_, storage_timeout_;
  Mesh mesh_;
  Rendezvous rendezvous_;
  GroupObservers observers_;
  Group world_;
  Group data_;
  std::unique_ptr<StoreWatch> watch_;  // for the launcher's word that the job has failed
};

// The mesh that a resolved recipe asks for.
[[nodiscard]] Mesh mesh_of(const Recipe& recipe);

}  // namespace troika
