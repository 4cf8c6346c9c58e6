// Points in time by which something must have happened. A wait without one is a bug.
#pragma once

#include <chrono>
#include <cstdint>

namespace troika {

// The steady clock, less the time for which this process was stopped with its job: stop_process().
// A job that goes on after Ctrl-Z therefore finds its deadlines as it left them.
struct Clock {
  // NOLINTBEGIN(readability-identifier-naming): as std::chrono names them.
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Clock>;
  static constexpr bool is_steady = true;
  // NOLINTEND(readability-identifier-naming)

  [[nodiscard]] static time_point now() noexcept;
};

using Seconds = std::chrono::duration<double>;

// Returns the nanoseconds since 1970 by the wall clock, which other processes read, too.
[[nodiscard]] inline std::int64_t wall_nanoseconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

class Deadline {
 public:
  // Returns the deadline `timeout` from now. A time-out that is NaN or negative counts as zero, one
  // of more than 30 years as 30 years.
  [[nodiscard]] static Deadline in(Seconds timeout) {
    constexpr Seconds kMost(1e9);
    if (!(timeout > Seconds(0))) timeout = Seconds(0);
    return Deadline(Clock::now(), timeout < kMost ? timeout : kMost);
  }

  [[nodiscard]] bool passed() const { return Clock::now() >= at_; }
  // Returns the time left, never negative.
  [[nodiscard]] Seconds left() const {
    const Seconds left = at_ - Clock::now();
    return left.count() > 0 ? left : Seconds(0);
  }
  // Returns the time since the deadline was set.
  [[nodiscard]] Seconds waited() const { return Clock::now() - start_; }
  // Returns the time-out that it was set to.
  [[nodiscard]] Seconds timeout() const { return timeout_; }
  [[nodiscard]] Clock::time_point at() const { return at_; }

 private:
  Deadline(Clock::time_point start, Seconds timeout)
      : start_(start),
        timeout_(timeout),
        at_(start + std::chrono::duration_cast<Clock::duration>(timeout)) {}
  Clock::time_point start_;
  Seconds timeout_;
  Clock::time_point at_;
};

}  // namespace troika
