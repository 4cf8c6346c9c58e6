// What connects a simulated worker or server with the others: so many bytes a second in each
// direction at once, and a time that every message takes beside them.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

namespace troika {

struct Link {
  double bytes_per_second = std::numeric_limits<double>::infinity();
  double latency = 0;  // s, one way

  // Returns the time of so many bytes on a link of their own, without the latency, in s.
  [[nodiscard]] double seconds(double bytes) const { return bytes / bytes_per_second; }
};

// Reads "200Mbit/s 5ms", "1Gbit/s" or "12.5MB/s 300us": bit/s or B/s with k, M or G for powers of
// 1000, and s, ms or us. Either may be left out. Throws UsageError.
[[nodiscard]] Link parse_link(std::string_view text);

// Says what a collective costs each of its ranks: the time, in s, and the bytes that it sends.
struct CollectiveCost {
  double seconds = 0;
  double bytes = 0;
};

// Returns the cost of an all_reduce of `bytes` between hosts, as docs/engines.md has it for
// messages. A receiver says that it is ready before a message is sent, so the first message of each
// takes two latencies:
//
//   (ranks - 1) bytes up to 256 KiB    2 latency + (ranks - 1) bytes / rate
//   larger                             3 latency + 2 (ranks - 1) / ranks bytes / rate
//
[[nodiscard]] CollectiveCost all_reduce_cost(const Link& link, int ranks, double bytes);

}  // namespace troika
