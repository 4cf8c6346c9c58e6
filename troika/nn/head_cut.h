// How attention is cut by heads over the tensor axis. Pure arithmetic.
#pragma once

#include <troika/base/index_range.h>

#include <cstdint>
#include <vector>

namespace troika {

// The heads of one rank. Neighbours that need the same key and value head both have it.
struct HeadCut {
  IndexRange query;
  IndexRange key_value;
  // The number of leading heads of `key_value` that this rank counts: up to where the next rank's
  // begin.
  std::int64_t counted = 0;
  // True if any two ranks of the axis hold the same key and value head.
  bool overlapping = false;
  // The key and value head, among those here, that each query head here reads; ascending.
  std::vector<std::int64_t> reads;
};

// Returns the heads of `rank`. Requires that `kv_heads` divides `heads`, and at most as many ranks
// as heads.
[[nodiscard]] HeadCut cut_heads(std::int64_t heads, std::int64_t kv_heads, int rank, int ranks);

}  // namespace troika
