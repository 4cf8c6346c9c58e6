// Times for calls that count in whole milliseconds.
#pragma once

#include <troika/base/time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

namespace troika {

// Returns `time` rounded up, so that a wait of that length does not end early. Returns at least
// one, since zero means for ever, or a default, to some calls. At most 30 years.
[[nodiscard]] inline std::chrono::milliseconds whole_milliseconds(Seconds time) {
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(std::clamp(std::ceil(time.count() * 1e3), 1.0, 1e12)));
}

// Returns the time-out for poll(2), which counts in an int: at most 11 days. A caller that waits
// longer polls again.
[[nodiscard]] inline int poll_milliseconds(Seconds time) {
  return static_cast<int>(std::min<std::int64_t>(whole_milliseconds(time).count(), 1'000'000'000));
}

}  // namespace troika
