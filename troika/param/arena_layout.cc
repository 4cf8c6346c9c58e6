#include <c10/core/ScalarType.h>
#include <troika/base/error.h>
#include <troika/param/arena_layout.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>

namespace troika {
namespace {

// 64 bytes hold 16 fp32, and so 32 of the 16-bit types: rounding to 32 elements aligns every slot.
constexpr std::int64_t kSlotElements = 32;

std::int64_t aligned(std::int64_t count) {
  return (count + kSlotElements - 1) / kSlotElements * kSlotElements;
}

// Places where a shard may begin, ascending: for each, the element and the byte of the working
// weights.
struct Candidate {
  std::int64_t element;
  std::int64_t working_byte;
};

// Those in a bucket, from its beginning to its end.
std::vector<Candidate> candidates_of(const Bucket& bucket, std::span<const Slot> slots,
                                     std::span<const ParameterSpec* const> specs,
                                     std::int64_t chunk) {
  const Slot &first = slots[bucket.first_parameter], &last = slots[bucket.last_parameter - 1];
  std::vector<Candidate> candidates = {{first.offset, first.working_offset}};
  for (std::size_t i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
    const Slot& slot = slots[i];
    const std::int64_t step = specs[i]->whole_matrix ? slot.count : chunk;
    for (std::int64_t at = 0; at < slot.count; at += step) {
      candidates.push_back(
          {slot.offset + at, slot.working_offset + at * slot.working_element_size});
    }
  }
  const std::int64_t padded = aligned(last.count);
  candidates.push_back(
      {last.offset + padded, last.working_offset + padded * last.working_element_size});
  return candidates;
}

// The candidate nearest to `target`, the lower of two, not below `least`.
Candidate nearest(std::span<const Candidate> candidates, std::int64_t target, std::int64_t least) {
  auto above = std::ranges::lower_bound(candidates, target, {}, &Candidate::element);
  if (above == candidates.end()) --above;
  if (above != candidates.begin()) {
    const auto below = std::prev(above);
    if (target - below->element <= above->element - target) above = below;
  }
  while (above->element < least) ++above;  // `least` is a candidate itself
  return *above;
}

}  // namespace

ArenaLayout::ArenaLayout(std::span<const ParameterSpec* const> specs, NumericTypes types,
                         const ArenaLayoutOptions& options)
    : options_(options) {
  check(options.stage >= 0 && options.stage <= 3, "a ZeRO stage is 0 to 3");
  check(options.shard >= 0 && options.shard < options.shards, "a shard is one of the shards");
  check(options.stage > 0 || options.shards == 1, "nothing is cut at ZeRO stage 0");
  const auto frozen = std::ranges::find_if(specs, &ParameterSpec::frozen);
  check(std::all_of(frozen, specs.end(), [](const auto* spec) { return spec->frozen; }),
        "frozen parameters come behind the trained ones");
  place(specs, types);
  const auto element_size = static_cast<std::int64_t>(c10::elementSize(types.master));
  const auto trained = static_cast<std::size_t>(frozen - specs.begin());
  group_units(specs, 0, trained, element_size);
  trained_buckets_ = buckets_.size();
  group_units(specs, trained, specs.size(), element_size);
  cut(specs);
  collect_shard_ranges();
}

void ArenaLayout::place(std::span<const ParameterSpec* const> specs, NumericTypes types) {
  const auto size = [](at::ScalarType type) {
    return static_cast<std::int64_t>(c10::elementSize(type));
  };
  int units = 0;
  std::int64_t trained = 0;
  for (const ParameterSpec* spec : specs) {
    units = std::max(units, spec->unit + 1);
    while (!spec->frozen && std::ssize(unit_begin_) <= spec->unit) unit_begin_.push_back(elements_);
    // Where nothing is cut, the master of a trained parameter that stays in its type serves.
    const bool mastered = spec->keep_fp32 && types.compute != types.master && !spec->frozen;
    const std::int64_t working_element_size =
        mastered && options_.stage == 0 ? 0 : size(types.working(*spec));
    slots_.push_back({elements_, spec->local_count(), working_bytes_, working_element_size});
    elements_ += aligned(spec->local_count());
    if (!spec->frozen) trained = elements_;
    working_bytes_ += aligned(spec->local_count()) * working_element_size;
  }
  while (std::ssize(unit_begin_) <= units) unit_begin_.push_back(trained);
}

// From the last unit to the first, the order in which gradients become ready. A unit with gradients
// to be summed over pipeline stages is a bucket by itself: it waits for other ranks.
void ArenaLayout::group_units(std::span<const ParameterSpec* const> specs, std::size_t first,
                              std::size_t last, std::int64_t element_size) {
  std::set<int> alone;
  for (std::size_t i = first; i < last; ++i) {
    if (std::ranges::count(specs[i]->partial_over, Axis::kPipeline) > 0) {
      alone.insert(specs[i]->unit);
    }
  }
  std::vector<Bucket> buckets;
  std::int64_t bytes = 0, limit = 0;
  for (std::size_t i = last; i-- > first;) {
    const int unit = specs[i]->unit;
    const bool is_last = i + 1 == last;
    const bool new_unit = is_last || specs[i + 1]->unit != unit;
    const bool is_apart =
        alone.count(unit) > 0 || (!is_last && alone.count(specs[i + 1]->unit) > 0);
    if (new_unit && (options_.stage == 3 || bytes >= limit || is_apart)) {
      limit = buckets.empty() ? options_.buckets.first_bytes : options_.buckets.bytes;
      bytes = 0;
      Bucket& bucket = buckets.emplace_back();
      bucket.frozen = specs[i]->frozen;
      bucket.last_unit = unit + 1;
      bucket.last_parameter = i + 1;
    }
    buckets.back().first_unit = unit;
    buckets.back().first_parameter = i;
    bytes += aligned(slots_[i].count) * element_size;
  }
  std::move(buckets.rbegin(), buckets.rend(), std::back_inserter(buckets_));
}

// What rounding to a candidate takes from a shard in one bucket it gets back in the next ones, so
// that over all buckets no shard is off by more than about a chunk.
void ArenaLayout::cut(std::span<const ParameterSpec* const> specs) {
  const auto shards = static_cast<std::size_t>(options_.shards);
  // One shard is cut nowhere.
  const std::int64_t chunk = shards > 1 ? kChunkElements : std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> before(shards, 0);  // elements of the shards below each, so far
  std::int64_t total = 0;
  for (Bucket& bucket : buckets_) {
    const std::vector<Candidate> candidates = candidates_of(bucket, slots_, specs, chunk);
    const Candidate first = candidates.front(), last = candidates.back();
    total += last.element - first.element;
    std::vector<Candidate> borders = {first};
    for (std::size_t r = 1; r < shards; ++r) {
      const std::int64_t even = total * static_cast<std::int64_t>(r) / options_.shards;
      borders.push_back(
          nearest(candidates, first.element + even - before[r], borders.back().element));
      before[r] += borders.back().element - first.element;
    }
    borders.push_back(last);
    for (const Candidate& border : borders) {
      bucket.borders.push_back(border.element);
      bucket.working_borders.push_back(border.working_byte);
    }
  }
}

void ArenaLayout::collect_shard_ranges() {
  const auto own = static_cast<std::size_t>(options_.shard);
  for (Bucket& bucket : buckets_) {
    bucket.own_offset = own_elements_;
    bucket.own_working_offset = own_working_bytes_;
    const std::int64_t begin = bucket.borders[own], end = bucket.borders[own + 1];
    own_elements_ += end - begin;
    if (!bucket.frozen) own_trained_elements_ = own_elements_;
    own_working_bytes_ += bucket.working_borders[own + 1] - bucket.working_borders[own];
    for (std::size_t i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
      const Slot& slot = slots_[i];
      const std::int64_t from = std::max(begin - slot.offset, std::int64_t{0});
      const std::int64_t to = std::min(end - slot.offset, slot.count);
      const bool empty_here = slot.count == 0 && own == 0;  // belongs to rank 0
      if (from < to || empty_here) shard_ranges_.push_back({i, from, empty_here ? 0 : to - from});
    }
  }
}

}  // namespace troika
