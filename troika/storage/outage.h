// How long, and how often, a request to an object store that does not answer is made again. Without
// clocks or connections, for the plug-in that makes the requests and for tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace troika {

// Requests are made again for so many seconds unless a recipe says otherwise: commands that a
// person waits for.
inline constexpr double kFewSeconds = 5;

// No pause between two attempts is longer, in seconds.
inline constexpr double kLongestRetryPause = 30;

// Returns the seconds to wait before retry number `retries` (from 0) of a request that was first
// made `waited` seconds ago: half a second, twice as long each time, at most 30 s, and never beyond
// `patience` seconds in all.
[[nodiscard]] inline double retry_pause(std::int64_t retries, double waited, double patience) {
  constexpr double kFirst = 0.5;
  const double growing =
      kFirst * std::exp2(static_cast<double>(std::min<std::int64_t>(retries, 10)));
  return std::clamp(patience - waited, 0.0, std::min(growing, kLongestRetryPause));
}

// The time of repeat_attempts(): of the process, or of a test.
struct RetryClock {
  std::function<double()> now;        // in seconds of any steady clock
  std::function<void(double)> pause;  // returns so many seconds later
};

// Calls `attempt` until it returns an empty text, with growing pauses for `patience` seconds. It
// returns why it has failed otherwise, and `may_pass` whether that reason is worth another attempt.
// Returns the last reason; empty where an attempt has gone well.
[[nodiscard]] inline std::string repeat_attempts(
    double patience, const std::function<std::string()>& attempt,
    const std::function<bool(const std::string&)>& may_pass, const RetryClock& clock) {
  std::optional<double> first_failure;
  for (std::int64_t retries = 0;; ++retries) {
    std::string reason = attempt();
    if (reason.empty() || !may_pass(reason)) return reason;
    const double now = clock.now();
    if (!first_failure) first_failure = now;
    if (now - *first_failure >= patience) return reason;
    clock.pause(retry_pause(retries, now - *first_failure, patience));
  }
}

// Decides which failure of a request begins an outage, so that each outage is told once, however
// many requests it fails. Not thread safe.
class OutageNotice {
 public:
  // Records a failure at `now`, in seconds of any steady clock. Returns whether it is the first of
  // an outage: none has failed for longer than the longest pause and a request's own time-out.
  [[nodiscard]] bool begins(double now) {
    constexpr double kApart = 60;
    const bool is_new = !last_ || now - *last_ > kApart;
    last_ = now;
    return is_new;
  }

 private:
  std::optional<double> last_;
};

}  // namespace troika
