#include <troika/base/error.h>
#include <troika/schedule/schedule.h>

#include <algorithm>

namespace troika {

std::string_view name_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "F";
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return "B";
    case ActionKind::kBackwardWeight:
      return "W";
    case ActionKind::kSendActivation:
      return "send activation";
    case ActionKind::kReceiveActivation:
      return "receive activation";
    case ActionKind::kSendGradient:
      return "send gradient";
    case ActionKind::kReceiveGradient:
      return "receive gradient";
  }
  throw InternalError("internal error: an action of no kind");
}

int ScheduleAction::source_stage() const {
  switch (kind) {
    case ActionKind::kSendActivation:
    case ActionKind::kReceiveActivation:
      return stage - 1;
    case ActionKind::kSendGradient:
    case ActionKind::kReceiveGradient:
      return stage + 1;
    default:
      return stage;
  }
}

std::string describe(const ScheduleAction& action) {
  const std::string microbatch = std::to_string(action.microbatch);
  const std::string stage = "stage " + std::to_string(action.stage) + ")";
  const std::string name(name_of(action.kind));
  return action.is_compute() ? name + microbatch + " (" + stage
                             : name + " " + microbatch + " (for " + stage;
}

bool Schedule::splits_backward() const {
  return std::ranges::any_of(programs, [](const Program& program) {
    return std::ranges::count(program, ActionKind::kBackwardWeight, &ScheduleAction::kind) > 0;
  });
}

std::vector<int> Schedule::stages_of(int rank) const {
  std::vector<int> stages;
  for (int stage = 0; stage < static_cast<int>(rank_of_stage.size()); ++stage) {
    if (rank_of_stage[static_cast<std::size_t>(stage)] == rank) stages.push_back(stage);
  }
  return stages;
}

int Schedule::peer(const ScheduleAction& transfer) const {
  const int stage = transfer.is_send() ? transfer.stage : transfer.source_stage();
  return rank_of_stage.at(static_cast<std::size_t>(stage));
}

bool Schedule::crosses(int stage, int neighbour) const {
  return rank_of_stage.at(static_cast<std::size_t>(stage)) !=
         rank_of_stage.at(static_cast<std::size_t>(neighbour));
}

}  // namespace troika
