#include <troika/base/slice_runs.h>
#include <troika/checkpoint/overlap.h>

#include <algorithm>
#include <cstring>

namespace troika {
namespace {

SliceStrides strides_of(const ShardDescriptor& shard) {
  return {shard.shape, shard.slice.dim, shard.slice.begin, shard.slice.end};
}

// A part, and where an element of the whole lies in it.
class PartOfWhole {
 public:
  explicit PartOfWhole(const ShardDescriptor& shard)
      : strides_(strides_of(shard)), begin_(shard.begin), end_(shard.begin + shard.count) {}

  // Calls `act` with (place in the whole, place in the part, length) for each run of the elements
  // [first, last) of the whole that are in the part.
  template <class Act>
  void for_each_run_in(std::int64_t first, std::int64_t last, const Act& act) const {
    if (strides_.part == 0 || strides_.whole == 0) return;
    for (std::int64_t row = first / strides_.whole; row * strides_.whole < last; ++row) {
      // Of the row, in elements of the slice.
      const std::int64_t at = row * strides_.part;
      const std::int64_t shift = row * strides_.whole + strides_.shift - at;
      const std::int64_t low = std::max({at, first - shift, begin_});
      const std::int64_t high = std::min({at + strides_.part, last - shift, end_});
      if (low < high) act(low + shift, low - begin_, high - low);
    }
  }

 private:
  SliceStrides strides_;
  std::int64_t begin_, end_;
};

}  // namespace

std::int64_t copy_overlap(const ShardDescriptor& from, const std::byte* source,
                          const ShardDescriptor& to, std::byte* target, std::size_t element_size) {
  const PartOfWhole part(from);
  std::int64_t copied = 0;
  for_each_run(strides_of(to), to.begin, to.count,
               [&](std::int64_t whole, std::int64_t place, std::int64_t length) {
                 part.for_each_run_in(
                     whole, whole + length,
                     [&](std::int64_t found, std::int64_t from_place, std::int64_t count) {
                       const std::int64_t to_place = place + found - whole;
                       std::memcpy(target + static_cast<std::size_t>(to_place) * element_size,
                                   source + static_cast<std::size_t>(from_place) * element_size,
                                   static_cast<std::size_t>(count) * element_size);
                       copied += count;
                     });
               });
  return copied;
}

}  // namespace troika
