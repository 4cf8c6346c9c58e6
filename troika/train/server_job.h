// The processes of a job whose parameters lie on servers: one that coordinates, evaluates and saves
// (rank 0), the servers, and then the workers. They meet through the job's store and through
// connections, so that any of them but the first may be started again alone.
#pragma once

#include <troika/recipe/recipe.h>
#include <troika/rendezvous/world.h>
#include <troika/train/run.h>

#include <optional>
#include <string>

namespace troika {

// Returns whether a recipe's parameters lie on servers.
[[nodiscard]] bool has_servers(const Recipe& recipe);

// Return how many processes there are beside the workers, and how many workers `processes` hold.
// Throws UsageError where there is none.
[[nodiscard]] int processes_beside_workers(const Recipe& recipe);
[[nodiscard]] int workers_of(const Recipe& recipe, int processes);

// Does the work of one process, as run_training() does.
[[nodiscard]] RunReport run_with_servers(const Recipe& recipe, const World& world,
                                         const RunOptions& options);

// Returns the place of a process among those of its host that train; nullopt where it does not: the
// coordinator and servers, which compute on the host. Where workers have several ranks it is that
// of a worker, whose ranks take devices.
[[nodiscard]] std::optional<HostPosition> position_of_worker(const Recipe& recipe,
                                                             const World& world);

// Returns the ranks of a worker of a recipe with servers.
[[nodiscard]] int ranks_of_worker(const Recipe& recipe);

// Trains for a job that runs, whose coordinator listens at "HOST:PORT", until all is trained or a
// signal comes. `world` are the ranks of one worker. With a place among the workers that the job
// was started with, it is one of these, and signals end it with the job.
void join_servers(const Recipe& recipe, const World& world, const std::string& coordinator,
                  std::optional<int> place = {});

}  // namespace troika
