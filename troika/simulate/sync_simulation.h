// What a [sync] section would do on machines of given speeds, behind given links: real gradients of
// all workers in one process, under a virtual clock. The same numbers come each time, for a given
// time of a pass.
#pragma once

#include <troika/observe/value_counts.h>
#include <troika/recipe/recipe.h>
#include <troika/simulate/link.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace troika {

class Passes;

// When a worker is there, in s on the virtual clock.
struct WorkerStay {
  double joins = 0;                                         // 0: the job starts with it
  double leaves = std::numeric_limits<double>::infinity();  // behind the pass that it is at then
};

// The machines.
struct SimulatedJob {
  // Lists them by worker, in the order in which they join: global_batch_size / starting() samples
  // take pass_seconds / speed.
  std::vector<double> speeds = {1};
  std::vector<WorkerStay> stays = {};  // likewise; empty: all are there from the start to the end
  double pass_seconds = 1;
  Link link;  // of each worker and of each server
  // The spread of the shares of a link that transfers at the same time get: see Network.
  double unevenness = 0;
  std::uint64_t seed = 0;  // of these shares

  [[nodiscard]] int workers() const { return static_cast<int>(speeds.size()); }
  [[nodiscard]] WorkerStay stay(int worker) const;
  // Returns the number of workers that the job starts with.
  [[nodiscard]] int starting() const;
  // Returns the time of a worker's pass, in s.
  [[nodiscard]] double seconds(int worker, std::int64_t samples,
                               std::int64_t global_batch_size) const;
};

struct SimulatedStep {
  std::int64_t step = 0;
  double seconds = 0;  // on the virtual clock, when it was complete
  double loss = 0;     // mean, of all workers
  std::int64_t updates = 0;
  std::optional<double> staleness = {};  // mean over its updates; none where there are no servers
  std::optional<double> held_out_loss = {};  // behind it, where the recipe evaluates
};

struct SimulatedWorker {
  std::int64_t passes = 0, samples = 0;
  double busy = 0;                                                    // s at passes
  double joined = 0, left = std::numeric_limits<double>::infinity();  // as they came about
};

struct SyncSimulation {
  std::vector<SimulatedStep> steps = {};
  double seconds = 0;             // until the last step was complete
  double outside_seconds = 0;     // not in `seconds`: replicas average before evaluations
  ValueCounts staleness = {};     // updates by their staleness
  double sent = 0, received = 0;  // bytes of values, by all workers
  std::vector<SimulatedWorker> workers = {};
  std::string failure = {};  // why it ended before the last step; empty where it did not

  // Returns the part of the workers' time, while they were there, at which they were at no pass.
  [[nodiscard]] double waiting() const;
};

// Throws UsageError for a recipe whose workers are not simulated: they hold the whole model, and
// exchange it as it is; and they come and go only where parameters lie on servers.
void check_simulated(const Recipe& recipe, const SimulatedJob& job);

// Returns whether the recipe evaluates after a step.
[[nodiscard]] bool evaluates_after(const Recipe& recipe, std::int64_t step);

// Trains what the recipe says. `passes` are of the same recipe, but for [sync].
[[nodiscard]] SyncSimulation simulate_sync(const Recipe& recipe, const SimulatedJob& job,
                                           Passes& passes);

// Do so for parameters on servers, and for workers that exchange with each other.
[[nodiscard]] SyncSimulation simulate_servers(const Recipe& recipe, const SimulatedJob& job,
                                              Passes& passes);
[[nodiscard]] SyncSimulation simulate_groups(const Recipe& recipe, const SimulatedJob& job,
                                             Passes& passes);

}  // namespace troika
