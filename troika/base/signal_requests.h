// Tells a signal that asks again from the echo of a request. Much sends its signal twice:
// timeout(1) to its child and to the child's group, a terminal to a rank and to the launcher that
// passes it on.
#pragma once

#include <atomic>
#include <chrono>

namespace troika {

// May be used in a signal handler that blocks all signals.
class SignalRequests {
 public:
  using Clock = std::chrono::steady_clock;
  // The same signal within this time after a request belongs to that request.
  static constexpr std::chrono::milliseconds kEcho{1000};

  // Returns true for a signal that asks anew, be it the first one.
  [[nodiscard]] bool is_new(int signal, Clock::time_point now = Clock::now()) {
    const Clock::duration time = now.time_since_epoch();
    if (signal_.exchange(signal) == signal && time - time_.load() < kEcho) return false;
    time_ = time;
    return true;
  }
  void forget() { signal_ = 0; }

 private:
  std::atomic<int> signal_ = 0;  // of the last request; 0: none has come
  std::atomic<Clock::duration> time_{};
};

}  // namespace troika
