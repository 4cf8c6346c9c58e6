// A pipeline schedule as data: for every rank the list of what it does in one step, in order. A
// generator writes it (generate.h), one validator proves it (validate.h), one simulator times it
// (simulate.h), one executor runs it. No tensors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troika {

enum class ActionKind {
  kForward,
  kBackward,        // gradients of input and weights together
  kBackwardInput,   // the gradient of the input only
  kBackwardWeight,  // the gradients of the weights only, after the input's
  kSendActivation,
  kReceiveActivation,
  kSendGradient,
  kReceiveGradient,
};

// Returns "F", "B", "B", "W" for what computes (whether B includes W is the schedule's), "send
// activation", ... for transfers.
[[nodiscard]] std::string_view name_of(ActionKind kind);

// An action of a rank for one microbatch of one stage. Stages are numbered over the whole model.
//
// For a transfer, on both of its ends, `stage` is the one that uses the tensor. An activation is
// the input of `stage`, made by stage - 1. A gradient is that of the output of `stage`, made by
// stage + 1. So both ends of a message carry the same stage and microbatch.
struct ScheduleAction {
  ActionKind kind = ActionKind::kForward;
  int stage = 0;
  int microbatch = 0;

  [[nodiscard]] bool is_send() const {
    return kind == ActionKind::kSendActivation || kind == ActionKind::kSendGradient;
  }
  [[nodiscard]] bool is_receive() const {
    return kind == ActionKind::kReceiveActivation || kind == ActionKind::kReceiveGradient;
  }
  [[nodiscard]] bool is_compute() const { return !is_send() && !is_receive(); }
  // Return whether the action makes the gradient of the input, and those of the weights.
  [[nodiscard]] bool makes_input_gradient() const {
    return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
  }
  [[nodiscard]] bool makes_weight_gradient() const {
    return kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight;
  }
  // Returns the change in the activations of a virtual stage that are alive after it: 1, 0 or -1.
  [[nodiscard]] int activations() const {
    return kind == ActionKind::kForward ? 1 : makes_weight_gradient() ? -1 : 0;
  }
  // Returns the stage that makes the tensor of a transfer, and `stage` for the other actions.
  [[nodiscard]] int source_stage() const;

  friend bool operator==(const ScheduleAction&, const ScheduleAction&) = default;
};

// Returns "F3 (stage 1)", "receive activation 3 (for stage 1)".
[[nodiscard]] std::string describe(const ScheduleAction& action);

// The actions of one rank, in order. The executor follows these rules:
// - an action that computes runs to its end before the next one, and waits for what it uses: of its
//   own rank it was made before, of another rank it has been received;
// - a send or receive is posted and does not wait. Between two ranks the messages of one direction
//   match in order: the n-th receive takes the n-th send, so a message needs no tag;
// - a message moves once both ends are posted (nothing relies on buffering). A rank releases its
//   sends in their order; at most Schedule::most_sends() are in flight, then a send waits for the
//   oldest of them, so that a fast rank does not run away from a slow link.
using Program = std::vector<ScheduleAction>;

struct Schedule {
  std::string name;
  int ranks = 1;
  int virtual_stages = 1;  // stages on each rank
  int microbatches = 1;
  std::vector<int> rank_of_stage;  // ranks x virtual_stages entries
  std::vector<Program> programs;   // one a rank
  // The stages before it have no backward pass, and it makes no gradient for them.
  int first_backward_stage = 0;

  [[nodiscard]] int stages() const { return ranks * virtual_stages; }
  // Returns the most sends of one rank that its peers have not received. With several virtual
  // stages any number is allowed: microbatches come back to the rank that has sent them, and might
  // wait for each other.
  [[nodiscard]] int most_sends() const {
    return virtual_stages == 1 ? 2 * ranks : 2 * virtual_stages * microbatches;
  }
  // Returns whether any gradient of weights is computed apart from that of the input.
  [[nodiscard]] bool splits_backward() const;
  // Returns the stages of a rank in ascending order. A stage's index in the list is its virtual
  // stage.
  [[nodiscard]] std::vector<int> stages_of(int rank) const;
  // Returns the rank at the other end of a transfer that a rank of this schedule has in its
  // program.
  [[nodiscard]] int peer(const ScheduleAction& transfer) const;
  // Returns whether two neighbouring stages lie on different ranks. Only then is there a transfer.
  [[nodiscard]] bool crosses(int stage, int neighbour) const;

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// Return an index from 0 to stages x microbatches - 1, and the number of such indices: for tables
// of one entry a stage and microbatch.
[[nodiscard]] inline std::size_t cell_of(const Schedule& schedule, int stage, int microbatch) {
  return static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule.microbatches) +
         static_cast<std::size_t>(microbatch);
}
[[nodiscard]] inline std::size_t cell_of(const Schedule& schedule, const ScheduleAction& action) {
  return cell_of(schedule, action.stage, action.microbatch);
}
[[nodiscard]] inline std::size_t cells_of(const Schedule& schedule) {
  return static_cast<std::size_t>(schedule.stages()) *
         static_cast<std::size_t>(schedule.microbatches);
}

// Writes the transfers into programs that hold only actions that compute, all ranks' at once: a
// send right after the action that makes the tensor, a receive one computing action ahead of the
// one that uses it, so that it overlaps with that. Where ranks use messages in another order than
// their peer sends them, receives are posted earlier, as far as their order asks for. Throws
// InternalError if an action uses what no program makes.
void add_transfers(Schedule& schedule);

// Returns a schedule with transfers in which the stages before `first` have no backward pass, as
// where nothing before it is trained. With `first` = stages() nothing has one.
[[nodiscard]] Schedule without_backward_before(Schedule schedule, int first);

}  // namespace troika
