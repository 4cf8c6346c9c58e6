// What the ranks that act as one add up in a step or an evaluation: the loss, its weight, and what
// may keep a step from being applied. Started as soon as a rank has its own part, so that the round
// trip hides behind the backward pass.
#pragma once

#include <troika/comm/group.h>
#include <troika/nn/loss_terms.h>

#include <cstdint>
#include <string>
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
};

// The sums over all ranks.
struct StepSums {
  double loss = 0;  // NaN where a rank's own loss is not finite
  double weight = 0;
  std::int64_t valid = 0;
  std::vector<int> nonfinite_ranks;  // world ranks whose own loss is not finite
  bool refused = false;              // by a rank
  int stop_signal = 0;               // the first of them; 0: none
};

class StepReduction {
 public:
  // Collective over each of `groups`, one after the other, at least one: starts to add this rank's
  // part to the others'. Only the first group's ranks are told apart in the sums. `timeout` is for
  // each of them.
  StepReduction(std::vector<Group> groups, const StepPart& own, std::string label, Seconds timeout);
  // Collective where there are several groups. Throws DeadlineError, PeerError.
  [[nodiscard]] StepSums wait() const;

 private:
  std::vector<Group> groups_;
  std::string label_;
  Seconds timeout_;
  // fp64 [3 + ranks]: loss, weight, valid, a number a rank: 1 not finite, 2 refused, + 4 x its
  // signal
  at::Tensor shared_;
  Work work_;
};

}  // namespace troika
