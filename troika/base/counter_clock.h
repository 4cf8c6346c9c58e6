// The wall clock for callers that read it often.
#pragma once

#include <cstdint>

namespace troika {

// Returns wall_nanoseconds() (time.h) at a fraction of its cost, where the processor counts time at
// a constant rate. For up to a millisecond after a reading of the clock it adds the processor's
// counter, which may be read ahead of earlier instructions. The result is off by a few microseconds
// at most. From one call to the next it may go back by as much, and by any amount that the clock is
// set back.
[[nodiscard]] std::int64_t wall_nanoseconds_by_counter() noexcept;

}  // namespace troika
