// The wall clock for those who ask it often.
#pragma once

#include <cstdint>

namespace troika {

// wall_nanoseconds() (time.h) at a fraction of what it takes, where the processor counts time at a
// constant rate: up to a millisecond after a reading of the clock it is told by the processor's
// counter, which may be read ahead of earlier instructions. It is off by a few microseconds at
// most; from one call to the next it may go back by as much, and by whatever the clock is set back.
[[nodiscard]] std::int64_t wall_nanoseconds_by_counter() noexcept;

}  // namespace troika
