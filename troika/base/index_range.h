// The one rule by which a count of things (samples, tokens, heads, rows of a vocabulary) is cut
// among ranks.
#pragma once

#include <troika/base/error.h>

#include <algorithm>
#include <cstdint>

namespace troika {

// A contiguous range: [first, first + count).
struct IndexRange {
  std::int64_t first = 0;
  std::int64_t count = 0;

  [[nodiscard]] constexpr std::int64_t end() const { return first + count; }
  bool operator==(const IndexRange&) const = default;
};

// Returns the range of `total` things that `rank` of `ranks` ranks has. Ranges are in rank order.
// Their sizes differ by at most one; the lower ranks have the larger ones. Some are empty where
// there are more ranks than things.
[[nodiscard]] inline IndexRange even_split(std::int64_t total, std::int64_t rank,
                                           std::int64_t ranks) {
  check(ranks >= 1 && rank >= 0 && rank < ranks, "a range of a rank outside its axis");
  const std::int64_t least = total / ranks, larger = total % ranks;
  return {rank * least + std::min(rank, larger), least + (rank < larger ? 1 : 0)};
}

}  // namespace troika
