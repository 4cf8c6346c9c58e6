// Validates a pipeline schedule of any origin against what a step has to do and how programs are
// executed (schedule.h). It does not depend on the generators.
#pragma once

#include <troika/schedule/schedule.h>

#include <optional>
#include <string>
#include <vector>

namespace troika {

struct ScheduleBounds {
  // The most activations that may be alive on a rank at once, in microbatches: those of one virtual
  // stage and one microbatch are 1 / virtual_stages. Any number if there is none.
  std::optional<double> activations;
};

// A fault of a schedule.
struct ScheduleFault {
  int rank = 0;
  int position = 0;     // in the rank's program; its size where something is missing
  std::string message;  // one line that names rank, position and action
};

// Returns the first fault, or none if `schedule` is proven:
// - every stage lies on a rank, `virtual_stages` of them on each;
// - every microbatch has forward, input gradient and weight gradient exactly once on each stage
//   (the two gradients together or apart), in this order, on the stage's rank;
// - forwards, input gradients and weight gradients of a stage each come in ascending order of
//   microbatches: whatever pass adds to a gradient, the same bits;
// - what crosses ranks is sent and received exactly once, after it is made and before it is used,
//   and between two ranks the receives are posted in the order of the sends;
// - every program comes to its end, a message moving only when both of its ends are posted;
// - activations keep within the bounds. One is alive from its forward to the end of its weight
//   gradient.
[[nodiscard]] std::optional<ScheduleFault> find_fault(const Schedule& schedule,
                                                      const ScheduleBounds& bounds = {});

// Throws UsageError with the fault, if there is one.
void validate(const Schedule& schedule, const ScheduleBounds& bounds = {});

// Returns the most activations alive at once on each rank, in those of a single virtual stage:
// divide by `virtual_stages` for microbatches. Requires a schedule without a fault.
[[nodiscard]] std::vector<int> peak_stage_activations(const Schedule& schedule);

}  // namespace troika
