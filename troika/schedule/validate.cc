#include <troika/base/error.h>
#include <troika/schedule/validate.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

namespace troika {
namespace {

std::string text(int number) {
  return std::to_string(number);
}

// What has been done for a stage and microbatch, as bits.
enum Mark : std::uint8_t {
  kForwarded = 1,
  kInputDone = 2,
  kWeightDone = 4,
  kActivationSent = 8,
  kActivationReceived = 16,
  kGradientSent = 32,
  kGradientReceived = 64,
};

std::uint8_t marks_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return kForwarded;
    case ActionKind::kBackward:
      return kInputDone | kWeightDone;
    case ActionKind::kBackwardInput:
      return kInputDone;
    case ActionKind::kBackwardWeight:
      return kWeightDone;
    case ActionKind::kSendActivation:
      return kActivationSent;
    case ActionKind::kReceiveActivation:
      return kActivationReceived;
    case ActionKind::kSendGradient:
      return kGradientSent;
    case ActionKind::kReceiveGradient:
      return kGradientReceived;
  }
  throw InternalError("internal error: an action of no kind");
}

// The mark of the other end of a send.
Mark end_of(const ScheduleAction& send) {
  return send.kind == ActionKind::kSendActivation ? kActivationReceived : kGradientReceived;
}

// An action that is missing, for messages.
struct RequiredAction {
  std::uint8_t mark;
  ActionKind kind;
};

class Validator {
 public:
  Validator(const Schedule& schedule, const ScheduleBounds& bounds)
      : schedule_(schedule), bounds_(bounds) {}

  std::optional<ScheduleFault> find_fault() {
    if (auto fault = check_shape()) return fault;
    marks_.assign(cells_of(schedule_), 0);
    next_.assign(static_cast<std::size_t>(schedule_.stages()), {});
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      if (auto fault = walk(rank)) return fault;
    }
    if (auto fault = check_complete()) return fault;
    if (auto fault = check_matching()) return fault;
    return run();
  }

 private:
  using Fault = std::optional<ScheduleFault>;

  [[nodiscard]] int rank_of(int stage) const {
    return schedule_.rank_of_stage[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] const Program& program(int rank) const {
    return schedule_.programs[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] bool is_stage(int stage) const { return stage >= 0 && stage < schedule_.stages(); }
  [[nodiscard]] bool has(int stage, int microbatch, Mark mark) const {
    return (marks_[cell_of(schedule_, stage, microbatch)] & mark) != 0;
  }
  [[nodiscard]] ScheduleFault fault(int rank, int position, const std::string& message) const {
    return {
        rank, position,
        schedule_.name + ": rank " + text(rank) + ", action " + text(position) + ": " + message};
  }

  Fault check_shape() const;
  Fault walk(int rank);
  // Whether `action` may stand where it does; empty if so.
  [[nodiscard]] std::string violation(int rank, const ScheduleAction& action) const;
  [[nodiscard]] std::string compute_violation(const ScheduleAction& action) const;
  [[nodiscard]] std::string transfer_violation(int rank, const ScheduleAction& action) const;
  [[nodiscard]] std::string missing_input(const ScheduleAction& action) const;
  Fault check_complete() const;
  Fault check_matching() const;
  Fault run() const;

  const Schedule& schedule_;
  const ScheduleBounds& bounds_;
  std::vector<std::uint8_t> marks_;
  // By stage: whose forward, input gradient and weight gradient is due.
  struct Due {
    int forward = 0, input = 0, weight = 0;
  };
  std::vector<Due> next_;
};

Validator::Fault Validator::check_shape() const {
  const auto wrong = [this](const std::string& message) {
    return ScheduleFault{0, 0, schedule_.name + ": " + message};
  };
  if (schedule_.ranks < 1 || schedule_.virtual_stages < 1 || schedule_.microbatches < 1) {
    return wrong("ranks, virtual stages and microbatches are at least 1");
  }
  if (static_cast<int>(schedule_.rank_of_stage.size()) != schedule_.stages() ||
      static_cast<int>(schedule_.programs.size()) != schedule_.ranks) {
    return wrong(text(schedule_.stages()) + " stages on " + text(schedule_.ranks) +
                 " ranks, but places for " +
                 text(static_cast<int>(schedule_.rank_of_stage.size())) + " and " +
                 text(static_cast<int>(schedule_.programs.size())) + " programs");
  }
  std::vector<int> stages(static_cast<std::size_t>(schedule_.ranks), 0);
  for (const int rank : schedule_.rank_of_stage) {
    if (rank < 0 || rank >= schedule_.ranks) return wrong("a stage on rank " + text(rank));
    ++stages[static_cast<std::size_t>(rank)];
  }
  for (int rank = 0; rank < schedule_.ranks; ++rank) {
    const int count = stages[static_cast<std::size_t>(rank)];
    if (count == schedule_.virtual_stages) continue;
    return fault(rank, 0, text(count) + " stages, not " + text(schedule_.virtual_stages));
  }
  return {};
}

// What can be told from one rank's program alone: a stage's actions are all on its rank.
Validator::Fault Validator::walk(int rank) {
  int alive = 0;
  for (int position = 0; position < static_cast<int>(program(rank).size()); ++position) {
    const ScheduleAction& action = program(rank)[static_cast<std::size_t>(position)];
    if (std::string why = violation(rank, action); !why.empty()) {
      return fault(rank, position, describe(action) + " " + why);
    }
    marks_[cell_of(schedule_, action)] |= marks_of(action.kind);
    Due& next = next_[static_cast<std::size_t>(action.stage)];
    if (action.makes_input_gradient()) ++next.input;
    if (action.makes_weight_gradient()) ++next.weight;
    alive += action.activations();
    if (action.kind != ActionKind::kForward) continue;
    ++next.forward;
    const double microbatches = static_cast<double>(alive) / schedule_.virtual_stages;
    if (bounds_.activations && microbatches > *bounds_.activations) {
      return fault(rank, position,
                   describe(action) + " makes " + text(alive) +
                       " activations of a virtual stage, of " + text(schedule_.virtual_stages) +
                       " a microbatch: more than memory is bound to");
    }
  }
  return {};
}

std::string Validator::violation(int rank, const ScheduleAction& action) const {
  if (!is_stage(action.stage)) return "is of a stage that is not there";
  if (!is_stage(action.source_stage())) return "is from a stage that is not there";
  if (action.microbatch < 0 || action.microbatch >= schedule_.microbatches) {
    return "is of a microbatch that is not there";
  }
  const int owner = rank_of(action.is_send() ? action.source_stage() : action.stage);
  if (owner != rank) return "is rank " + text(owner) + "'s to do";
  if ((marks_[cell_of(schedule_, action)] & marks_of(action.kind)) != 0) {
    return "is there twice";
  }
  return action.is_compute() ? compute_violation(action) : transfer_violation(rank, action);
}

std::string Validator::compute_violation(const ScheduleAction& action) const {
  const int stage = action.stage;
  const int microbatch = action.microbatch;
  if (action.kind != ActionKind::kBackwardWeight) {
    if (action.kind != ActionKind::kForward && !has(stage, microbatch, kForwarded)) {
      return "comes before its forward";
    }
    if (std::string why = missing_input(action); !why.empty()) return why;
  } else if (!has(stage, microbatch, kInputDone)) {
    return "comes before the gradient of its input";
  }
  const Due& next = next_[static_cast<std::size_t>(stage)];
  const int due = action.kind == ActionKind::kForward ? next.forward
                  : action.makes_input_gradient()     ? next.input
                                                      : next.weight;
  if (microbatch == due) return {};
  return "comes where microbatch " + text(due) +
         " is due: gradients are added up in ascending order";
}

// Of a forward, or a gradient of the input.
std::string Validator::missing_input(const ScheduleAction& action) const {
  const bool forward = action.kind == ActionKind::kForward;
  const int source = forward ? action.stage - 1 : action.stage + 1;
  if (!is_stage(source)) return {};  // the data, or the loss
  if (schedule_.crosses(action.stage, source)) {
    return has(action.stage, action.microbatch, forward ? kActivationReceived : kGradientReceived)
               ? ""
               : "comes before what it uses is received";
  }
  return has(source, action.microbatch, forward ? kForwarded : kInputDone)
             ? ""
             : "comes before stage " + text(source) + " of its rank has made what it uses";
}

std::string Validator::transfer_violation(int rank, const ScheduleAction& action) const {
  if (schedule_.peer(action) == rank) return "stays on its rank";
  if (action.is_receive()) return {};
  const bool activation = action.kind == ActionKind::kSendActivation;
  return has(action.source_stage(), action.microbatch, activation ? kForwarded : kInputDone)
             ? ""
             : "comes before it is made";
}

Validator::Fault Validator::check_complete() const {
  for (int stage = 0; stage < schedule_.stages(); ++stage) {
    std::vector<RequiredAction> required = {{kForwarded, ActionKind::kForward},
                                            {kInputDone, ActionKind::kBackwardInput},
                                            {kWeightDone, ActionKind::kBackwardWeight}};
    if (stage > 0 && schedule_.crosses(stage, stage - 1)) {
      required.push_back({kActivationSent, ActionKind::kSendActivation});
      required.push_back({kActivationReceived, ActionKind::kReceiveActivation});
    }
    if (is_stage(stage + 1) && schedule_.crosses(stage, stage + 1)) {
      required.push_back({kGradientSent, ActionKind::kSendGradient});
      required.push_back({kGradientReceived, ActionKind::kReceiveGradient});
    }
    std::uint8_t all = 0;
    for (const RequiredAction& one : required) all |= one.mark;
    for (int microbatch = 0; microbatch < schedule_.microbatches; ++microbatch) {
      const std::uint8_t done = marks_[cell_of(schedule_, stage, microbatch)];
      if (done == all) continue;
      for (const RequiredAction& one : required) {
        if ((done & one.mark) != 0) continue;
        const ScheduleAction action{one.kind, stage, microbatch};
        const int rank = rank_of(action.is_send() ? action.source_stage() : stage);
        return fault(rank, static_cast<int>(program(rank).size()),
                     describe(action) + " is missing");
      }
    }
  }
  return {};
}

// Every message has both ends by now: what is left is their order.
Validator::Fault Validator::check_matching() const {
  struct Channel {
    std::vector<ScheduleAction> sends;
    std::size_t received = 0;
  };
  std::map<std::pair<int, int>, Channel> channels;
  for (int rank = 0; rank < schedule_.ranks; ++rank) {
    for (const ScheduleAction& action : program(rank)) {
      if (action.is_send()) channels[{rank, schedule_.peer(action)}].sends.push_back(action);
    }
  }
  for (int rank = 0; rank < schedule_.ranks; ++rank) {
    for (int position = 0; position < static_cast<int>(program(rank).size()); ++position) {
      const ScheduleAction& action = program(rank)[static_cast<std::size_t>(position)];
      if (!action.is_receive()) continue;
      Channel& channel = channels[{schedule_.peer(action), rank}];
      const ScheduleAction& send = channel.sends.at(channel.received++);
      const bool same_kind = (action.kind == ActionKind::kReceiveActivation) ==
                             (send.kind == ActionKind::kSendActivation);
      if (same_kind && cell_of(schedule_, action) == cell_of(schedule_, send)) continue;
      return fault(rank, position,
                   describe(action) + " is posted where rank " + text(schedule_.peer(action)) +
                       " does " + describe(send));
    }
  }
  return {};
}

// Carries the programs out, whichever rank can go on first. The only waits are those of actions
// that compute, for a message, and those of sends, for an older one to be received; what is posted
// stays posted, so the order in which ranks go on makes no difference, and if this run ends so does
// every other. A rank that waits to compute has posted its receive (walk) and messages match
// (check_matching), so it waits for the send alone.
Validator::Fault Validator::run() const {
  std::vector<std::uint8_t> posted(marks_.size(), 0);
  std::vector<std::size_t> next(schedule_.programs.size(), 0);
  std::vector<std::deque<ScheduleAction>> in_flight(schedule_.programs.size());  // sends by rank
  const auto is_posted = [&](const ScheduleAction& action, Mark mark) {
    return (posted[cell_of(schedule_, action)] & mark) != 0;
  };
  const auto must_wait_to_send = [&](int rank) {
    auto& sends = in_flight[static_cast<std::size_t>(rank)];
    while (!sends.empty() && is_posted(sends.front(), end_of(sends.front()))) sends.pop_front();
    return static_cast<int>(sends.size()) >= schedule_.most_sends();
  };
  const auto waits = [&](const ScheduleAction& action) {
    const bool forward = action.kind == ActionKind::kForward;
    if (!forward && !action.makes_input_gradient()) return false;
    const int source = forward ? action.stage - 1 : action.stage + 1;
    if (!is_stage(source) || !schedule_.crosses(action.stage, source)) return false;
    return !is_posted(action, forward ? kActivationSent : kGradientSent);
  };
  std::vector<int> ready;
  for (int rank = schedule_.ranks; rank-- > 0;) ready.push_back(rank);
  while (!ready.empty()) {
    const int rank = ready.back();
    ready.pop_back();
    std::size_t& position = next[static_cast<std::size_t>(rank)];
    for (; position < program(rank).size(); ++position) {
      const ScheduleAction& action = program(rank)[position];
      if (action.is_send() ? must_wait_to_send(rank) : waits(action)) break;
      if (action.is_compute()) continue;
      posted[cell_of(schedule_, action)] |= marks_of(action.kind);
      if (action.is_send()) in_flight[static_cast<std::size_t>(rank)].push_back(action);
      ready.push_back(schedule_.peer(action));
    }
  }
  for (int rank = 0; rank < schedule_.ranks; ++rank) {
    const std::size_t position = next[static_cast<std::size_t>(rank)];
    if (position == program(rank).size()) continue;
    const ScheduleAction& action = program(rank)[position];
    const int source = action.kind == ActionKind::kForward ? action.stage - 1 : action.stage + 1;
    const int other = action.is_send()
                          ? schedule_.peer(in_flight[static_cast<std::size_t>(rank)].front())
                          : rank_of(source);
    const ScheduleAction& its = program(other)[next[static_cast<std::size_t>(other)]];
    return fault(rank, static_cast<int>(position),
                 describe(action) + " waits for rank " + text(other) + ", which waits in " +
                     describe(its) + ": a deadlock");
  }
  return {};
}

}  // namespace

std::optional<ScheduleFault> find_fault(const Schedule& schedule, const ScheduleBounds& bounds) {
  return Validator(schedule, bounds).find_fault();
}

void validate(const Schedule& schedule, const ScheduleBounds& bounds) {
  const std::optional<ScheduleFault> fault = find_fault(schedule, bounds);
  if (!fault) return;
  throw UsageError("the pipeline schedule " + fault->message,
                   "its generator has to write another program");
}

std::vector<int> peak_stage_activations(const Schedule& schedule) {
  std::vector<int> peaks;
  for (const Program& program : schedule.programs) {
    int alive = 0;
    int peak = 0;
    for (const ScheduleAction& action : program) {
      alive += action.activations();
      peak = std::max(peak, alive);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace troika
