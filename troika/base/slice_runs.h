// A tensor that is cut along one dimension, and then into ranges of elements: which elements lie
// together in the whole.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>

namespace troika {

// Counts the elements of the slice [slice_begin, slice_end) along `dim` of a row-major tensor of
// `shape`. A scalar counts as [1].
struct SliceStrides {
  SliceStrides(std::span<const std::int64_t> shape, int dim, std::int64_t slice_begin,
               std::int64_t slice_end) {
    const std::size_t cut = shape.empty() ? 0 : static_cast<std::size_t>(dim) + 1;
    inner = std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(cut), shape.end(),
                            std::int64_t{1}, std::multiplies<>());
    whole = shape.empty() ? 1 : inner * shape[cut - 1];
    part = inner * (slice_end - slice_begin);
    shift = inner * slice_begin;
  }

  std::int64_t inner;  // behind the dimension
  std::int64_t whole;  // from one index of the dimensions before it to the next
  std::int64_t part;   // the same in the slice
  std::int64_t shift;  // before the slice
};

// Calls `act` with (place in the whole, place in the range, length) of each run of elements that
// lie together in both, for the elements [begin, begin + count) of a slice, row by row.
template <class Act>
void for_each_run(const SliceStrides& strides, std::int64_t begin, std::int64_t count,
                  const Act& act) {
  if (strides.part == strides.whole) {
    if (count > 0) act(begin, std::int64_t{0}, count);
    return;
  }
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t at = begin + done;
    const std::int64_t length = std::min(strides.part - at % strides.part, count - done);
    act(at / strides.part * strides.whole + strides.shift + at % strides.part, done, length);
    done += length;
  }
}

}  // namespace troika
