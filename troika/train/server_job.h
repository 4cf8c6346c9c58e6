// The processes of a job whose parameters lie on servers: one that coordinates, evaluates and saves
// (rank 0), the servers, and then the workers. They meet through the job's store and through
// connections, so that any of them but the first may be started again alone.
#pragma once

#include <troika/recipe/recipe.h>
#include <troika/rendezvous/world.h>
#include <troika/train/run.h>

#include <string>

namespace troika {

// Returns whether a recipe's parameters lie on servers.
[[nodiscard]] bool has_servers(const Recipe& recipe);

// Return how many processes there are beside the workers, and how many workers `processes` hold.
// Throws UsageError where there is none.
[[nodiscard]] int processes_beside_workers(const Recipe& recipe);
[[nodiscard]] int workers_of(const Recipe& recipe, int processes);

// Returns what a process of such a job does: "coordinator", "server 1", "worker 0".
[[nodiscard]] std::string role_of(const Recipe& recipe, int rank);

// Does the work of one process, as run_training() does.
[[nodiscard]] RunReport run_with_servers(const Recipe& recipe, const World& world,
                                         const RunOptions& options);

// Trains for a job that runs, whose coordinator listens at "HOST:PORT", until all is trained or a
// signal comes.
void join_servers(const Recipe& recipe, const std::string& coordinator);

}  // namespace troika
