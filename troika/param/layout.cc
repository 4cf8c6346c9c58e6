#include <c10/core/ScalarType.h>
#include <troika/base/error.h>
#include <troika/param/layout.h>

#include <algorithm>
#include <limits>
#include <set>

namespace troika {
namespace {

// 64 bytes hold 16 fp32, and so 32 of the 16-bit types: rounding to 32 elements aligns every slot.
constexpr std::int64_t kSlotElements = 32;

std::int64_t aligned(std::int64_t count) {
  return (count + kSlotElements - 1) / kSlotElements * kSlotElements;
}

// Places where a shard may begin, ascending: for each, the element and the byte of the values.
struct Candidate {
  std::int64_t element;
  std::int64_t value_byte;
};

// Those in a block, from its beginning to its end.
std::vector<Candidate> candidates_of(const Block& block, std::span<const Slot> slots,
                                     std::span<const ParameterSpec* const> specs,
                                     std::int64_t chunk) {
  const Slot &first = slots[block.first_parameter], &last = slots[block.last_parameter - 1];
  std::vector<Candidate> candidates = {{first.offset, first.value_offset}};
  for (std::size_t i = block.first_parameter; i < block.last_parameter; ++i) {
    const Slot& slot = slots[i];
    const std::int64_t step = specs[i]->whole_matrix ? slot.count : chunk;
    for (std::int64_t at = 0; at < slot.count; at += step) {
      candidates.push_back({slot.offset + at, slot.value_offset + at * slot.value_size});
    }
  }
  const std::int64_t padded = aligned(last.count);
  candidates.push_back({last.offset + padded, last.value_offset + padded * last.value_size});
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

Layout::Layout(std::span<const ParameterSpec* const> specs, NumericTypes types,
               const LayoutOptions& options)
    : options_(options) {
  check(options.stage >= 0 && options.stage <= 3, "a ZeRO stage is 0 to 3");
  check(options.shard >= 0 && options.shard < options.shards, "a shard is one of the shards");
  check(options.stage > 0 || options.shards == 1, "nothing is cut at ZeRO stage 0");
  place(specs, types);
  group_units(specs, static_cast<std::int64_t>(c10::elementSize(types.master)));
  cut(specs);
  collect_pieces();
}

void Layout::place(std::span<const ParameterSpec* const> specs, NumericTypes types) {
  const auto size = [](at::ScalarType type) {
    return static_cast<std::int64_t>(c10::elementSize(type));
  };
  std::int64_t offset = 0;
  for (const ParameterSpec* spec : specs) {
    while (std::ssize(unit_begin_) <= spec->unit) unit_begin_.push_back(offset);
    const bool mastered = spec->precise && types.compute != types.master;
    const std::int64_t whole = options_.stage == 0 ? 0 : size(types.master);
    const std::int64_t value_size = mastered ? whole : size(types.compute);
    slots_.push_back({offset, spec->local_count(), value_bytes_, value_size});
    offset += aligned(spec->local_count());
    value_bytes_ += aligned(spec->local_count()) * value_size;
  }
  unit_begin_.push_back(offset);
}

// From the last unit to the first, the order in which gradients become ready. A unit with gradients
// to be summed over pipeline stages is a block by itself: it waits for other ranks.
void Layout::group_units(std::span<const ParameterSpec* const> specs, std::int64_t element_size) {
  std::set<int> alone;
  for (const ParameterSpec* spec : specs) {
    if (std::ranges::count(spec->partial_over, Axis::kPipeline) > 0) alone.insert(spec->unit);
  }
  std::int64_t bytes = 0, limit = 0;
  for (std::size_t i = specs.size(); i-- > 0;) {
    const int unit = specs[i]->unit;
    const bool new_unit = i + 1 == specs.size() || specs[i + 1]->unit != unit;
    const bool is_apart =
        alone.count(unit) > 0 || (i + 1 < specs.size() && alone.count(specs[i + 1]->unit) > 0);
    if (new_unit && (options_.stage == 3 || bytes >= limit || is_apart)) {
      limit = blocks_.empty() ? options_.buckets.first_bytes : options_.buckets.bytes;
      bytes = 0;
      Block& block = blocks_.emplace_back();
      block.last_unit = unit + 1;
      block.last_parameter = i + 1;
    }
    blocks_.back().first_unit = unit;
    blocks_.back().first_parameter = i;
    if (new_unit) bytes += (unit_begin(unit + 1) - unit_begin(unit)) * element_size;
  }
  std::ranges::reverse(blocks_);
}

// What rounding to a candidate takes from a shard in one block it gets back in the next ones, so
// that over all blocks no shard is off by more than about a chunk.
void Layout::cut(std::span<const ParameterSpec* const> specs) {
  const auto shards = static_cast<std::size_t>(options_.shards);
  // One shard is cut nowhere.
  const std::int64_t chunk = shards > 1 ? kChunkElements : std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> before(shards, 0);  // elements of the shards below each, so far
  std::int64_t total = 0;
  for (Block& block : blocks_) {
    const std::vector<Candidate> candidates = candidates_of(block, slots_, specs, chunk);
    const Candidate first = candidates.front(), last = candidates.back();
    total += last.element - first.element;
    std::vector<Candidate> borders = {first};
    for (std::size_t r = 1; r < shards; ++r) {
      const std::int64_t share = total * static_cast<std::int64_t>(r) / options_.shards;
      borders.push_back(
          nearest(candidates, first.element + share - before[r], borders.back().element));
      before[r] += borders.back().element - first.element;
    }
    borders.push_back(last);
    for (const Candidate& border : borders) {
      block.borders.push_back(border.element);
      block.value_borders.push_back(border.value_byte);
    }
  }
}

void Layout::collect_pieces() {
  const auto own = static_cast<std::size_t>(options_.shard);
  for (Block& block : blocks_) {
    block.own_offset = own_elements_;
    block.own_value_offset = own_value_bytes_;
    const std::int64_t begin = block.borders[own], end = block.borders[own + 1];
    own_elements_ += end - begin;
    own_value_bytes_ += block.value_borders[own + 1] - block.value_borders[own];
    for (std::size_t i = block.first_parameter; i < block.last_parameter; ++i) {
      const Slot& slot = slots_[i];
      const std::int64_t from = std::max(begin - slot.offset, std::int64_t{0});
      const std::int64_t to = std::min(end - slot.offset, slot.count);
      const bool empty_here = slot.count == 0 && own == 0;  // belongs to somebody, too
      if (from < to || empty_here) pieces_.push_back({i, from, empty_here ? 0 : to - from});
    }
  }
}

}  // namespace troika
