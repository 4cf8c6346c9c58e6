// The parts of members within a whole: which bytes are whose.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>

namespace troika::shm {

// [begin, end) of one member's part within all parts.
struct Range {
  std::size_t begin, end;
};

inline Range range_of(std::span<const std::int64_t> counts, int member, std::size_t element) {
  const auto before = std::accumulate(counts.begin(), counts.begin() + member, std::int64_t{0});
  const auto begin = static_cast<std::size_t>(before) * element;
  return {begin,
          begin + static_cast<std::size_t>(counts[static_cast<std::size_t>(member)]) * element};
}

// Copies what window [begin, end) of a member's contribution shares with `wanted`, whose first byte
// goes to `to`. Returns how many bytes that were.
inline std::size_t take_range(const std::byte* view, std::size_t begin, std::size_t end,
                              Range wanted, std::byte* to) {
  const std::size_t low = std::max(begin, wanted.begin), high = std::min(end, wanted.end);
  if (low >= high) return 0;
  std::memcpy(to + (low - wanted.begin), view + (low - begin), high - low);
  return high - low;
}

}  // namespace troika::shm
