// What the ranks that act as one add up in a step or an evaluation: the loss, its weight, and what
// may keep a step from being applied. On the host it starts as soon as a rank has its own part, so
// that the round trip hides behind the backward pass. Where the sums of a device go through the
// host, the loss is read when they are, so that the host queues the backward pass meanwhile. Where
// ranks add up on the device, the host reads what has become of them.
#pragma once

#include <troika/comm/group.h>
#include <troika/device/device.h>
#include <troika/nn/loss_terms.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The part of one rank.
struct StepPart {
  LossTerms loss = {};
  std::int64_t valid = 0;  // targets that count
  // True if this rank has refused its input, and has no share in the sums.
  bool refused = false;
  // The signal that asks this rank to end; 0: none.
  int stop_signal = 0;
  bool wants_checkpoint = false;  // this rank asks for one
  bool data_hashed = false;       // the contents of this rank's data are known
};

// The sums over all ranks.
struct StepSums {
  double loss = 0;  // NaN where a rank's own loss is not finite
  double weight = 0;
  std::int64_t valid = 0;
  std::vector<int> nonfinite_ranks;  // world ranks whose own loss is not finite
  bool refused = false;              // by a rank
  int stop_signal = 0;               // the first of them; 0: none
  bool wants_checkpoint = false;     // a rank does
  bool data_hashed = false;          // on all ranks
};

// The sums in memory of a device, before the host has read them.
struct DeviceSums {
  at::Tensor values;        // fp64 [3 + ranks of the first group], for sums_of()
  at::Tensor loss, weight;  // numbers (0-dim) among them. The loss is not finite where a rank's own
                            // is not, and where a rank has refused its input
};

// Queues the sums on the device that the loss lies on. Collective over each of `groups`, at least
// one, one after the other; all must carry tensors of the device (Group::carries()). `timeout` is
// for each. Only the first group's ranks are told apart. Throws DeadlineError, PeerError.
[[nodiscard]] DeviceSums queue_sums(const std::vector<Group>& groups, const StepPart& own,
                                    std::string_view label, Seconds timeout, at::Device device);

// Returns the sums that `values` hold, of groups whose first is `first`.
[[nodiscard]] StepSums sums_of(std::span<const double> values, const Group& first);

// The sums through the host's memory.
class StepReduction {
 public:
  // Starts to add this rank's part to the others'. Collective over each of `groups`, at least one,
  // one after the other. Only the first group's ranks are told apart in the sums. `timeout` is for
  // each of them. `device` is the model's, on every rank, whether or not the rank has a loss.
  StepReduction(std::vector<Group> groups, StepPart own, std::string label, Seconds timeout,
                at::Device device = at::kCPU);
  // Waits for the sums and returns them. Collective on a device, or where there are several groups.
  // Throws DeadlineError, PeerError.
  [[nodiscard]] StepSums wait();

 private:
  // Waits for the loss of this rank, and starts to add it to the others'.
  void start();

  std::vector<Group> groups_;
  StepPart own_;
  std::string label_;
  Seconds timeout_;
  DeviceEvent loss_copied_;
  // fp64 [3 + ranks]: loss, weight, valid, and a number a rank: 1 not finite, 2 refused, 4 wants a
  // checkpoint, 8 has hashed its data, + 16 x its signal
  at::Tensor shared_;
  Work work_;
  bool started_ = false;
};

}  // namespace troika
