#include <troika/base/error.h>
#include <troika/schedule/simulate.h>

#include <algorithm>
#include <cmath>

namespace troika {
namespace {

constexpr double kNotSent = -1;

void check_costs(const Schedule& schedule, const ScheduleCosts& costs) {
  const auto is_time = [](double time) { return std::isfinite(time) && time >= 0; };
  for (const std::vector<double>* times :
       {&costs.forward, &costs.backward_input, &costs.backward_weight}) {
    if (times->size() != static_cast<std::size_t>(schedule.stages())) {
      throw UsageError("times for " + std::to_string(times->size()) +
                       " stages, of which there are " + std::to_string(schedule.stages()));
    }
    if (!std::all_of(times->begin(), times->end(), is_time)) {
      throw UsageError("a time of a pipeline stage is not a finite number of at least 0");
    }
  }
  if (!is_time(costs.transfer)) {
    throw UsageError("the time of a transfer is not a finite number of at least 0");
  }
}

class Simulator {
 public:
  Simulator(const Schedule& schedule, const ScheduleCosts& costs)
      : schedule_(schedule),
        costs_(costs),
        next_(schedule.programs.size(), 0),
        activations_(cells_of(schedule), kNotSent),
        gradients_(cells_of(schedule), kNotSent),
        ranks_(schedule.programs.size()) {}

  std::vector<RankTimes> run() {
    std::vector<int> ready;
    for (int rank = schedule_.ranks; rank-- > 0;) ready.push_back(rank);
    while (!ready.empty()) {
      const int rank = ready.back();
      ready.pop_back();
      advance(rank, ready);
    }
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      check(next_[rank] == schedule_.programs[rank].size(),
            "rank " + std::to_string(rank) + " of the schedule waits forever");
    }
    return std::move(ranks_);
  }

 private:
  // As far as `rank` gets; ranks that it sends to may get further then.
  void advance(int rank, std::vector<int>& ready) {
    const Program& program = schedule_.programs[static_cast<std::size_t>(rank)];
    RankTimes& times = ranks_[static_cast<std::size_t>(rank)];
    for (std::size_t& i = next_[static_cast<std::size_t>(rank)]; i < program.size(); ++i) {
      const ScheduleAction& action = program[i];
      if (action.is_send()) {
        arrival(action) = times.last_end + costs_.transfer;
        ready.push_back(schedule_.peer(action));
      } else if (action.is_compute()) {
        const double there = time_of_input(action);
        if (there == kNotSent) return;
        add(times, action, std::max(times.last_end, there));
      }
    }
  }

  double& arrival(const ScheduleAction& action) {
    const bool activation =
        action.kind == ActionKind::kSendActivation || action.kind == ActionKind::kForward;
    return (activation ? activations_ : gradients_)[cell_of(schedule_, action)];
  }

  // When what another rank makes for `action` is there.
  double time_of_input(const ScheduleAction& action) {
    const bool forward = action.kind == ActionKind::kForward;
    if (!forward && !action.makes_input_gradient()) return 0;
    const int source = forward ? action.stage - 1 : action.stage + 1;
    if (source < 0 || source == schedule_.stages()) return 0;
    return schedule_.crosses(action.stage, source) ? arrival(action) : 0;
  }

  void add(RankTimes& times, const ScheduleAction& action, double start) const {
    if (times.actions.empty()) times.first_start = start;
    const double cost = costs_.of(action);
    times.actions.push_back({action, start, start + cost});
    times.busy += cost;
    times.last_end = start + cost;
  }

  const Schedule& schedule_;
  const ScheduleCosts& costs_;
  std::vector<std::size_t> next_;    // by rank
  std::vector<double> activations_;  // when the input of a stage arrives
  std::vector<double> gradients_;    // when the gradient of its output arrives
  std::vector<RankTimes> ranks_;
};

void count_activations(RankTimes& times, int virtual_stages) {
  int alive = 0;
  for (const TimedAction& timed : times.actions) {
    alive += timed.action.activations();
    times.peak_stage_activations = std::max(times.peak_stage_activations, alive);
  }
  times.peak_activations = static_cast<double>(times.peak_stage_activations) / virtual_stages;
}

}  // namespace

double idle_fraction(double whole, double work) {
  constexpr double kRounding = 1e-12;  // of sums of a few thousand times
  const double idle = whole - work;
  return idle > kRounding * whole ? idle / whole : 0;
}

double ScheduleCosts::of(const ScheduleAction& action) const {
  const auto stage = static_cast<std::size_t>(action.stage);
  switch (action.kind) {
    case ActionKind::kForward:
      return forward[stage];
    case ActionKind::kBackward:
      return backward_input[stage] + backward_weight[stage];
    case ActionKind::kBackwardInput:
      return backward_input[stage];
    case ActionKind::kBackwardWeight:
      return backward_weight[stage];
    default:
      return 0;
  }
}

ScheduleCosts even_costs(const Schedule& schedule, const RankCosts& costs) {
  const auto stages = static_cast<std::size_t>(schedule.stages());
  const auto each = [&](double time) {
    return std::vector<double>(stages, time / schedule.virtual_stages);
  };
  return {each(costs.forward), each(costs.backward_input), each(costs.backward_weight),
          costs.transfer};
}

Simulation simulate(const Schedule& schedule, const ScheduleCosts& costs) {
  check_costs(schedule, costs);
  Simulation result;
  result.ranks = Simulator(schedule, costs).run();
  double busy = 0;
  for (RankTimes& rank : result.ranks) {
    count_activations(rank, schedule.virtual_stages);
    busy += rank.busy;
    result.makespan = std::max(result.makespan, rank.last_end);
    result.longest_span = std::max(result.longest_span, rank.span());
    result.peak_activations = std::max(result.peak_activations, rank.peak_activations);
  }
  const double work = busy / schedule.ranks;
  result.bubble_makespan = idle_fraction(result.makespan, work);
  result.bubble_cost = idle_fraction(result.longest_span, work);
  return result;
}

}  // namespace troika
