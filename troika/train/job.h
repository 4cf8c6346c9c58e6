// What one rank knows of the job it belongs to: the mesh, its place in it, and the groups it talks
// in.
#pragma once

#include <troika/comm/group.h>
#include <troika/config/recipe.h>
#include <troika/mesh/mesh.h>
#include <troika/observe/recorder.h>
#include <troika/observe/trace.h>
#include <troika/rendezvous/rendezvous.h>

#include <filesystem>
#include <memory>

namespace troika {

class Job {
 public:
  // Collective: all ranks meet, agree on the recipe (resolved: data axis and precision are fixed)
  // and build their groups. `folder` takes flight recorders and traces. Throws RendezvousError,
  // UsageError.
  Job(World world, const Recipe& recipe, const std::filesystem::path& folder);

  [[nodiscard]] int rank() const { return rendezvous_.world().rank; }
  [[nodiscard]] int size() const { return rendezvous_.world().size; }
  [[nodiscard]] const World& world() const { return rendezvous_.world(); }
  [[nodiscard]] const std::vector<Member>& members() const { return rendezvous_.members(); }
  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  // Position along the data axis.
  [[nodiscard]] const Group& data() const { return data_; }
  [[nodiscard]] Trace& trace() const { return *observers_.trace; }
  // A deadline for one collective of a step.
  [[nodiscard]] Deadline deadline() const { return Deadline::in(timeout_); }
  [[nodiscard]] Seconds timeout() const { return timeout_; }

  // Collective: `value` of rank 0, on all ranks.
  [[nodiscard]] std::int64_t agree(std::int64_t value, std::string_view label) const;
  // Collective, at the end of a job that went well.
  void leave();

 private:
  Seconds timeout_;
  Mesh mesh_;
  Rendezvous rendezvous_;
  GroupObservers observers_;
  Group data_;
};

// The mesh that a resolved recipe asks for.
[[nodiscard]] Mesh mesh_of(const Recipe& recipe);

}  // namespace troika
