// The rendezvous of all ranks at the start of a job. Each announces its identity and what it is
// about to do, and no rank goes on unless all have come and agree.
#pragma once

#include <troika/base/failure.h>
#include <troika/base/time.h>
#include <troika/rendezvous/store.h>
#include <troika/rendezvous/world.h>

#include <optional>
#include <string>
#include <vector>

namespace troika {

struct Member {
  int rank = 0;
  std::string host;           // its name
  std::string host_identity;  // equal for ranks that can share memory
  std::string address;        // at which the other hosts of the job can reach it; empty when alone
  int pid = 0;
};

// The properties that all ranks must have in common.
struct Agreement {
  std::string version;  // of troika
  std::string recipe;   // as resolved, in TOML; compared line by line
  // The name of `recipe` in the error where ranks differ, and the hint of that error.
  std::string title = "the recipe";
  std::string hint = "start all ranks with the same recipe file and the same --set";
};

// Opens the store of a job, whose keys have its prefix: keeps it, where that is for this rank to
// do. Throws RendezvousError as join() does. For processes of a job that do not all meet.
[[nodiscard]] Store open_job_store(const World& world, const Deadline& deadline);

class Rendezvous {
 public:
  // Collective. Opens the store (a world of one needs none), announces this rank and waits for the
  // others. Throws RendezvousError
  // - when the store cannot be reached or its port is in use, naming it and the time waited;
  // - when ranks do not come, naming them;
  // - when ranks disagree on version or recipe, naming them and the first key that differs.
  [[nodiscard]] static Rendezvous join(World world, const Agreement& agreement,
                                       const Deadline& deadline);

  // Returns this rank's place in the job. It is complete: located() holds.
  [[nodiscard]] const World& world() const { return world_; }
  // Returns the members of all ranks, by rank.
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  // Returns the number of ranks on this host: this rank, and those that share its host.
  [[nodiscard]] int ranks_on_host() const;
  // Returns the store of this job alone: its keys have a prefix. Throws InternalError in a world of
  // one.
  [[nodiscard]] Store& store();

  // Leaves a job that went well. Collective. Where rank 0 keeps the store, it stays until all
  // others are done with it. Throws RendezvousError naming the ranks that are missing.
  void leave(const Deadline& deadline);

 private:
  Rendezvous(World world, std::optional<Store> store);
  void announce(const Agreement& agreement);
  void wait_for_members(const Agreement& agreement, const Deadline& deadline);
  void leave_failed(const Failure& failure);
  [[nodiscard]] bool hosts_store() const;

  World world_;
  std::optional<Store> store_;
  std::vector<Member> members_;
};

}  // namespace troika
