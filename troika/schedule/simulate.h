// Times a pipeline schedule: when each action of each rank starts and ends, how much of the time
// ranks wait, and how many activations are alive.
#pragma once

#include <troika/schedule/schedule.h>

#include <vector>

namespace troika {

// The costs for one microbatch, in any unit of time.
struct ScheduleCosts {
  std::vector<double> forward;          // by stage
  std::vector<double> backward_input;   // by stage
  std::vector<double> backward_weight;  // by stage
  // The time from the end of the action that makes a tensor until the tensor is on another rank. It
  // occupies neither rank, and transfers do not slow each other.
  double transfer = 0;

  // Returns the cost of one action that computes, and 0 for a transfer. A backward takes input and
  // weights together.
  [[nodiscard]] double of(const ScheduleAction& action) const;
};

// The times of one rank's part of the model, split evenly among its virtual stages.
struct RankCosts {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double transfer = 0;
};
[[nodiscard]] ScheduleCosts even_costs(const Schedule& schedule, const RankCosts& costs);

struct TimedAction {
  ScheduleAction action;
  double start = 0;
  double end = 0;
};

struct RankTimes {
  double first_start = 0;
  double last_end = 0;
  double busy = 0;
  int peak_stage_activations = 0;    // alive at once, of a single virtual stage
  double peak_activations = 0;       // the same in microbatches
  std::vector<TimedAction> actions;  // those that compute, in order
  [[nodiscard]] double span() const { return last_end - first_start; }
};

// Returns the part of `whole` that is left beside `work`, as a fraction of `whole`; 0 where they
// are the same but for rounding.
[[nodiscard]] double idle_fraction(double whole, double work);

struct Simulation {
  std::vector<RankTimes> ranks;
  double makespan = 0;      // from the start of the first action to the end of the last one
  double longest_span = 0;  // of any one rank, from its first action to its last
  // The idle fractions of makespan and longest_span: the part that is left when the work of a rank
  // is taken off. Qi et al. 2023 call longest_span the cost. Ranks of uneven work count with their
  // mean.
  double bubble_makespan = 0;
  double bubble_cost = 0;
  double peak_activations = 0;  // in microbatches, of the rank with the most
};

// Simulates a schedule. Actions start as soon as their rank is free and what they use is there.
// Throws UsageError if the costs are not one a stage, or not finite numbers of at least 0. Throws
// InternalError if the programs wait for each other (a schedule without a fault never does).
[[nodiscard]] Simulation simulate(const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace troika
