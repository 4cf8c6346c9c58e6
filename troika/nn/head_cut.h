// How attention is cut by heads over the tensor axis. Pure arithmetic.
#pragma once

#include <troika/base/index_range.h>

#include <cstdint>
#include <vector>

namespace troika {

// The heads of one rank. Neighbours may need the same key and value head: then both have it.
struct HeadCut {
  IndexRange query;
  IndexRange key_value;
  // Of `key_value`, the leading heads that this rank counts: up to where the next rank's begin.
  std::int64_t counted = 0;
  // Whether any two ranks of the axis hold the same key and value head.
  bool overlapping = false;
  // For each query head here, which of the key and value heads here it reads; ascending.
  std::vector<std::int64_t> reads;
};

// `kv_heads` divides `heads`, and there are at most as many ranks as heads.
[[nodiscard]] HeadCut cut_heads(std::int64_t heads, std::int64_t kv_heads, int rank, int ranks);

}  // namespace troika
