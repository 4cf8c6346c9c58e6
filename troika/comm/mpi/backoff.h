// Decides how often MPI is asked whether an operation is complete. At first it asks all the time,
// for microseconds; then as often as the scheduler allows. It naps once a peer is clearly late,
// such as one that computes. MPI has no call that waits with a time-out.
#pragma once

#include <troika/base/time.h>

#include <chrono>

namespace troika::mpi {

class Backoff {
 public:
  // Pauses between two questions to MPI.
  void pause();
  // Returns whether it is time to look at the clock and at the peers as well.
  [[nodiscard]] bool should_check() const {
    return rounds_ % kSpins == 0 || rounds_ > kSpins + kYields;
  }

 private:
  static constexpr int kSpins = 64;
  static constexpr int kYields = 1024;
  static constexpr std::chrono::milliseconds kUntilNaps{20};
  static constexpr std::chrono::microseconds kNap{100};
  int rounds_ = 0;
  Clock::time_point start_ = Clock::now();
};

}  // namespace troika::mpi
