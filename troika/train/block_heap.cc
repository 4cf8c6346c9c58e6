#include <sys/mman.h>
#include <troika/base/error.h>
#include <troika/train/block_heap.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <new>

namespace troika {
namespace {

constexpr std::size_t kUnitsOfChunk = BlockHeap::kChunk / BlockHeap::kAlignment;
// Addresses come into use in steps of several chunks, for each is a call of the system.
constexpr std::size_t kGrowth = 16 * kUnitsOfChunk;
constexpr std::size_t kBetweenQueries = std::size_t{64} << 20;  // bytes

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

BlockHeap::BlockHeap(std::size_t most_bytes, std::function<bool()> is_scarce)
    : is_scarce_(std::move(is_scarce)), mapping_bytes_(round_up(most_bytes, kChunk) + kChunk) {
  void* const mapping =
      ::mmap(nullptr, mapping_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return;
  mapping_ = mapping;
  const auto begin = reinterpret_cast<std::uintptr_t>(mapping);
  base_ = static_cast<char*>(mapping) + (round_up(begin, kChunk) - begin);
  most_units_ = (mapping_bytes_ - kChunk) / kAlignment;
  // Where the kernel has no huge pages, small ones do.
  static_cast<void>(::madvise(base_, most_units_ * kAlignment, MADV_HUGEPAGE));
}

BlockHeap::~BlockHeap() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
}

bool BlockHeap::owns(const void* memory) const noexcept {
  const auto* const at = static_cast<const char*>(memory);
  return base_ != nullptr && at >= base_ && at < base_ + most_units_ * kAlignment;
}

std::size_t BlockHeap::most_committed() const {
  const std::size_t peak = std::max(step_peak_, last_peak_);
  return peak + peak / 20 + 2 * kChunk;
}

void* BlockHeap::allocate(std::size_t bytes) noexcept {
  const std::size_t count = bytes / kAlignment + (bytes % kAlignment != 0 ? 1 : 0);
  if (count > most_units_) return nullptr;
  const std::lock_guard lock(mutex_);
  try {
    const auto found = find(count);
    if (found == free_.end()) return nullptr;
    const auto range = take(found, count, bytes);
    live_ += count * kAlignment;
    step_peak_ = std::max(step_peak_, live_);
    use_chunks(range->first, count);
    return address_of(range->first);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

BlockHeap::FreeRanges::iterator BlockHeap::find(std::size_t count) {
  const auto found = free_.lower_bound({count, 0});
  if (found != free_.end() || !grow(count)) return found;
  return free_.lower_bound({count, 0});
}

// The last range is then free, and has `count` units at least.
bool BlockHeap::grow(std::size_t count) {
  const bool has_end = !ranges_.empty() && ranges_.rbegin()->second.bytes == 0;
  const std::size_t there = has_end ? ranges_.rbegin()->second.count : 0;
  const std::size_t needed = round_up(count - there, kUnitsOfChunk);
  if (needed > most_units_ - units_) return false;
  const std::size_t added = std::min(std::max(needed, kGrowth), most_units_ - units_);
  is_used_.resize((units_ + added) / kUnitsOfChunk);
  Ranges range;
  FreeRanges entry;
  range.emplace(units_, Range{added});
  entry.emplace(added, units_);
  if (::mprotect(address_of(units_), added * kAlignment, PROT_READ | PROT_WRITE) != 0) return false;
  units_ += added;
  if (!has_end) {
    ranges_.merge(range);
    free_.merge(entry);
    return true;
  }
  const auto last = std::prev(ranges_.end());
  auto node = free_.extract({there, last->first});
  node.value().first = last->second.count = there + added;
  free_.insert(std::move(node));
  return true;
}

// The rest of a longer range stays free.
BlockHeap::Ranges::iterator BlockHeap::take(FreeRanges::iterator found, std::size_t count,
                                            std::size_t bytes) {
  const auto range = ranges_.find(found->second);
  if (const std::size_t rest = range->second.count - count; rest > 0) {
    FreeRanges entry;  // first what may fail
    entry.emplace(rest, range->first + count);
    ranges_.emplace_hint(std::next(range), range->first + count, Range{rest});
    free_.merge(entry);
  }
  range->second.count = count;
  range->second.bytes = bytes;
  range->second.entry = free_.extract(found);
  return range;
}

// Chunks without memory get it as the block is written to. As much is given back elsewhere where
// the heap would have too much.
void BlockHeap::use_chunks(std::size_t first, std::size_t count) {
  const std::size_t end = (first + count - 1) / kUnitsOfChunk + 1;
  std::size_t fresh = 0;
  for (std::size_t i = first / kUnitsOfChunk; i < end; ++i) {
    if (is_used_[i]) continue;
    is_used_[i] = true;
    fresh += kChunk;
  }
  if (fresh == 0) return;
  committed_ += fresh;
  grown_ += fresh;
  if (committed_ > most_committed()) give_back(most_committed());
  if (!is_scarce_ || grown_ < kBetweenQueries) return;
  grown_ = 0;
  if (is_scarce_()) give_back(0);
}

// From the end, so that blocks stay together at the beginning.
void BlockHeap::give_back(std::size_t most_committed) {
  for (auto range = ranges_.rbegin(); range != ranges_.rend() && committed_ > most_committed;
       ++range) {
    if (range->second.bytes == 0) give_back(*range, most_committed);
  }
}

void BlockHeap::give_back(const Ranges::value_type& range, std::size_t most_committed) {
  const std::size_t first = round_up(range.first, kUnitsOfChunk) / kUnitsOfChunk;
  for (std::size_t i = (range.first + range.second.count) / kUnitsOfChunk; i > first; --i) {
    if (committed_ <= most_committed) return;
    if (!is_used_[i - 1]) continue;
    ::madvise(base_ + (i - 1) * kChunk, kChunk, MADV_DONTNEED);
    is_used_[i - 1] = false;
    committed_ -= kChunk;
  }
}

BlockHeap::Ranges::iterator BlockHeap::range_of(const void* block) const {
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(block) - base_);
  const auto range = ranges_.find(offset / kAlignment);
  check(range != ranges_.end() && range->second.bytes > 0, "no block begins there");
  return range;
}

std::size_t BlockHeap::size_of(void* block) const {
  const std::lock_guard lock(mutex_);
  return range_of(block)->second.bytes;
}

std::size_t BlockHeap::release(void* block) noexcept {
  const std::lock_guard lock(mutex_);
  auto range = range_of(block);
  const std::size_t bytes = std::exchange(range->second.bytes, 0);
  auto entry = std::move(range->second.entry);
  live_ -= range->second.count * kAlignment;
  if (const auto next = std::next(range); next != ranges_.end() && next->second.bytes == 0) {
    free_.erase({next->second.count, next->first});
    range->second.count += next->second.count;
    ranges_.erase(next);
  }
  if (range != ranges_.begin() && std::prev(range)->second.bytes == 0) {
    const auto previous = std::prev(range);
    free_.erase({previous->second.count, previous->first});
    previous->second.count += range->second.count;
    ranges_.erase(range);
    range = previous;
  }
  entry.value() = {range->second.count, range->first};
  free_.insert(std::move(entry));
  return bytes;
}

void BlockHeap::begin_step() noexcept {
  const std::lock_guard lock(mutex_);
  step_peak_ = live_;  // not what came between the steps
  give_back(most_committed());
}

void BlockHeap::end_step() noexcept {
  const std::lock_guard lock(mutex_);
  last_peak_ = step_peak_;
  give_back(most_committed());
}

bool BlockHeap::trim() noexcept {
  const std::lock_guard lock(mutex_);
  const std::size_t before = committed_;
  give_back(0);
  return committed_ < before;
}

std::size_t BlockHeap::cached_bytes() const {
  const std::lock_guard lock(mutex_);
  return committed_ > live_ ? committed_ - live_ : 0;
}

}  // namespace troika
