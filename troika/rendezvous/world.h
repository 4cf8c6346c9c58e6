// The place of this process among all ranks of the job, and of the store where they meet. Read from
// what the launcher has set: troika's own, torchrun (also what Kubernetes jobs set), Slurm, or MPI.
#pragma once

#include <troika/rendezvous/endpoint.h>
#include <troika/rendezvous/environment.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

// The process that keeps the store. A launcher's or an agent's outlives every rank.
enum class StoreHost { kLauncher, kAgent, kRankZero };

struct World {
  int rank = 0;
  int size = 1;
  // The position on this host. Where the launcher does not set it: -1 and 0 until Rendezvous fills
  // them in from what the ranks announce to each other.
  int local_rank = -1;
  int local_size = 0;
  int node_rank = -1;
  int nodes = 0;
  std::string host;  // this host's name
  Endpoint store;    // unused when size is 1
  StoreHost store_host = StoreHost::kRankZero;
  // The store's port, on a rank 0 that has opened it already; null elsewhere.
  std::shared_ptr<ListeningSocket> listening = {};
  std::string source =
      "none";       // "troika", "torchrun", "slurm", "mpi", or "none" for a lone process
  std::string job;  // differs between jobs and restarts, the same on all ranks

  [[nodiscard]] bool located() const { return local_size > 0 && nodes > 0; }
};

// Returns the world of a process without a launcher: rank 0 of 1.
[[nodiscard]] World single_process_world(const Environment& environment);

// Returns the world that the environment describes, or nothing when no launcher is at work. Reads
// in this order: RANK and WORLD_SIZE (troika's launcher, torchrun, Kubernetes); a Slurm job step,
// unless its task is an MPI daemon that has started this process; Open MPI; MPICH and its
// relatives. Throws UsageError naming the variable that is malformed, missing or contradicts
// another; and, for MPI on several hosts, where MASTER_ADDR is missing.
[[nodiscard]] std::optional<World> world_from_environment(const Environment& environment);

// Returns the job's name under torchrun's variables, which our launcher sets as well.
[[nodiscard]] std::string elastic_job(std::string_view run_id, std::string_view restarts);
// Returns the prefix of the job's keys in the store.
[[nodiscard]] std::string key_prefix(std::string_view job);

// Returns the port of a job whose launcher names none: 20000 to 29999, by a hash of the job's name.
[[nodiscard]] std::uint16_t port_of_job(std::string_view job);

}  // namespace troika
