// Times for calls that count in whole milliseconds.
#pragma once

#include <troika/base/time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

namespace troika {

// Rounded up, so that who waits so long does not come back before the time, and at least one: zero
// is for ever, or a default, to some calls. At most 30 years.
[[nodiscard]] inline std::chrono::milliseconds whole_milliseconds(Seconds time) {
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(std::clamp(std::ceil(time.count() * 1e3), 1.0, 1e12)));
}

// For poll(2), which counts in an int: at most 11 days. Whoever may wait for longer asks again.
[[nodiscard]] inline int poll_milliseconds(Seconds time) {
  return static_cast<int>(std::min<std::int64_t>(whole_milliseconds(time).count(), 1'000'000'000));
}

}  // namespace troika
