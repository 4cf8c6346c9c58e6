// Measures how fast a group is, as nccl-tests does: what is timed is also checked, and bandwidth is
// given as bus bandwidth, which hardware bounds whatever the number of ranks.
#pragma once

#include <troika/base/time.h>
#include <troika/comm/group.h>

#include <cstdint>

namespace troika {

struct AllReduceTiming {
  std::int64_t bytes = 0;    // of the tensor
  Seconds time{0};           // of one operation: the median
  double bus_bandwidth = 0;  // bytes a second
};

// Returns 2 (n-1)/n times the bytes over the time. That is what each of n ranks must at least send
// and receive for an all-reduce, a second (nccl-tests, doc/PERFORMANCE.md).
[[nodiscard]] double all_reduce_bus_bandwidth(std::int64_t bytes, Seconds time, int ranks);

// Collective. Times `repetitions` blocking all-reduces of `bytes` of fp32, after a few that are not
// counted; each may take `timeout`. Throws InternalError if a result is wrong.
[[nodiscard]] AllReduceTiming time_all_reduce(const Group& group, std::int64_t bytes,
                                              int repetitions, Seconds timeout);

}  // namespace troika
