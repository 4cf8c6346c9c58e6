// The loss of a step or an evaluation over all ranks: started as soon as a rank has its own part,
// so that the round trip hides behind the backward pass.
#pragma once

#include <troika/comm/group.h>

#include <cstdint>
#include <vector>

namespace troika {

class LossSum {
 public:
  // For `valid`: this rank has refused what it was given, and has no share in the sum.
  static constexpr std::int64_t kRefused = -1;
  struct Result {
    double loss = 0;  // NaN where a rank's own loss is not finite
    std::int64_t valid = 0;
    std::vector<int> nonfinite_ranks;  // world ranks whose own loss is not finite
    bool refused = false;              // by a rank, what it was given
    int stop_signal = 0;               // that asks a rank to end, the first of them; 0: none
  };

  // Collective: starts to add this rank's `loss` (a sum over `valid` targets) to the others', and
  // tells them of the signal that asks it to end.
  LossSum(Group group, double loss, std::int64_t valid, const Call& call, int stop_signal = 0);
  // Throws DeadlineError, PeerError.
  [[nodiscard]] Result wait() const;

 private:
  Group group_;
  // fp64 [2 + ranks]: loss, valid, a number a rank: 1 not finite, 2 refused, + 4 x its signal
  at::Tensor shared_;
  Work work_;
};

}  // namespace troika
