// How many elements each rank of a group has of a bucket that is cut between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troika {

// Returns the counts of shards whose borders are given, ascending, from the begin of the first to
// the end of the last.
[[nodiscard]] inline std::vector<std::int64_t> shard_counts(std::span<const std::int64_t> borders) {
  std::vector<std::int64_t> counts;
  for (std::size_t i = 1; i < borders.size(); ++i) counts.push_back(borders[i] - borders[i - 1]);
  return counts;
}

}  // namespace troika
