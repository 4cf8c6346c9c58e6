// Adds the sends and receives between ranks to a schedule of computations.
#include <troika/base/error.h>
#include <troika/schedule/schedule.h>

#include <algorithm>
#include <map>
#include <optional>

namespace troika {
namespace {

constexpr int kNowhere = -1;

struct Receive {
  int position;  // among the receiver's computing actions: posted just before this one
  ScheduleAction action;
};

// What an action sends once it is done, if anything.
std::optional<ScheduleAction> send_after(const Schedule& schedule, const ScheduleAction& action) {
  const int stage = action.stage;
  if (action.kind == ActionKind::kForward) {
    if (stage + 1 == schedule.stages() || !schedule.crosses(stage, stage + 1)) return {};
    return ScheduleAction{ActionKind::kSendActivation, stage + 1, action.microbatch};
  }
  if (!action.makes_input_gradient() || stage == 0 || stage == schedule.first_backward_stage ||
      !schedule.crosses(stage, stage - 1)) {
    return {};
  }
  return ScheduleAction{ActionKind::kSendGradient, stage - 1, action.microbatch};
}

// Where in its rank's program each tensor is used.
struct Uses {
  explicit Uses(const Schedule& schedule)
      : activation(cells_of(schedule), kNowhere), gradient(cells_of(schedule), kNowhere) {
    for (const Program& program : schedule.programs) {
      for (int position = 0; position < static_cast<int>(program.size()); ++position) {
        const ScheduleAction& action = program[static_cast<std::size_t>(position)];
        if (action.kind == ActionKind::kForward) activation[cell_of(schedule, action)] = position;
        if (action.makes_input_gradient()) gradient[cell_of(schedule, action)] = position;
      }
    }
  }

  std::vector<int> activation;
  std::vector<int> gradient;
};

// The receives that answer the sends of one rank, for each receiver in the order of the sends.
std::map<int, std::vector<Receive>> answers(const Schedule& schedule, const Program& program,
                                            const Uses& uses) {
  std::map<int, std::vector<Receive>> by_receiver;
  for (const ScheduleAction& action : program) {
    const std::optional<ScheduleAction> send = send_after(schedule, action);
    if (!send) continue;
    const bool activation = send->kind == ActionKind::kSendActivation;
    const int used = (activation ? uses.activation : uses.gradient)[cell_of(schedule, *send)];
    if (used == kNowhere) {
      throw InternalError("internal error: no program uses what " + describe(action) + " makes");
    }
    const ActionKind kind =
        activation ? ActionKind::kReceiveActivation : ActionKind::kReceiveGradient;
    by_receiver[schedule.peer(*send)].push_back(
        {std::max(0, used - 1), {kind, send->stage, send->microbatch}});
  }
  for (auto& [receiver, receives] : by_receiver) {
    // None after one that was sent later.
    for (std::size_t i = receives.size(); i-- > 1;) {
      receives[i - 1].position = std::min(receives[i - 1].position, receives[i].position);
    }
  }
  return by_receiver;
}

Program with_transfers(const Schedule& schedule, const Program& program,
                       const std::vector<Receive>& receives) {
  Program result;
  result.reserve(3 * program.size());
  auto receive = receives.begin();
  for (int position = 0; position < static_cast<int>(program.size()); ++position) {
    for (; receive != receives.end() && receive->position == position; ++receive) {
      result.push_back(receive->action);
    }
    const ScheduleAction& action = program[static_cast<std::size_t>(position)];
    result.push_back(action);
    if (const auto send = send_after(schedule, action)) result.push_back(*send);
  }
  return result;
}

}  // namespace

void add_transfers(Schedule& schedule) {
  const Uses uses(schedule);
  std::vector<std::vector<Receive>> receives(schedule.programs.size());
  for (const Program& program : schedule.programs) {
    for (auto& [receiver, more] : answers(schedule, program, uses)) {
      std::vector<Receive>& all = receives[static_cast<std::size_t>(receiver)];
      all.insert(all.end(), more.begin(), more.end());
    }
  }
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    // Stable: the order of one sender's messages stays.
    std::stable_sort(receives[rank].begin(), receives[rank].end(),
                     [](const Receive& a, const Receive& b) { return a.position < b.position; });
    schedule.programs[rank] = with_transfers(schedule, schedule.programs[rank], receives[rank]);
  }
}

Schedule without_backward_before(Schedule schedule, int first) {
  schedule.first_backward_stage = first;
  for (Program& program : schedule.programs) {
    std::erase_if(program, [&](const ScheduleAction& action) {
      return !action.is_compute() || (action.kind != ActionKind::kForward && action.stage < first);
    });
  }
  add_transfers(schedule);
  return schedule;
}

}  // namespace troika
