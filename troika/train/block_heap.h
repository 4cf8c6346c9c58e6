// A heap of large blocks of memory. It keeps what is given back: the next block that fits there
// costs no page faults, where the C library maps and clears fresh pages for every one.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace troika {

// Hands out blocks of one range of addresses: the smallest free range that fits, and of equal ones
// the first. Neighbours that are free are joined. The range is made of chunks of the size of a huge
// page, which the kernel is asked for. Kept memory is what is free in chunks that have been used.
//
// The heap has no more memory than its blocks took at the peak of the last step, or of the step
// under way, a twentieth and two chunks: where it would have more it gives free chunks back. A
// program that marks no steps is in one step all the time. Thread-safe.
class BlockHeap {
 public:
  static constexpr std::size_t kAlignment = 4096;
  static constexpr std::size_t kChunk = std::size_t{2} << 20;

  // Reserves addresses for `most_bytes`, without memory. Where the system refuses, there are no
  // blocks. `is_scarce` says whether memory is so short that nothing should be kept: the heap asks
  // as it grows. It must not throw, nor call the heap.
  explicit BlockHeap(std::size_t most_bytes, std::function<bool()> is_scarce = {});
  ~BlockHeap();
  BlockHeap(const BlockHeap&) = delete;
  BlockHeap& operator=(const BlockHeap&) = delete;

  // Returns a block of at least `bytes` > 0, aligned to kAlignment, with whatever was there before;
  // null where the addresses are used up, or the system gives no more memory.
  [[nodiscard]] void* allocate(std::size_t bytes) noexcept;
  // Returns whether an address is in a block of this heap. Takes no lock.
  [[nodiscard]] bool owns(const void* memory) const noexcept;
  // Takes a block back, and returns the bytes that were asked for.
  std::size_t release(void* block) noexcept;
  // Returns the bytes that were asked for of a block.
  [[nodiscard]] std::size_t size_of(void* block) const;

  // Begin and end a step, and give back what is kept beyond the peak of the last one.
  void begin_step() noexcept;
  void end_step() noexcept;
  // Gives back all chunks that are free. Returns whether there were any.
  bool trim() noexcept;

  // Returns the bytes that are kept.
  [[nodiscard]] std::size_t cached_bytes() const;

  // Hold off other threads: a process that forks must not leave the heap half changed to its child.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  // Free ranges: their units of kAlignment, and the first unit.
  using FreeRanges = std::set<std::pair<std::size_t, std::size_t>>;
  struct Range {
    std::size_t count = 0;             // units
    std::size_t bytes = 0;             // asked for; 0 where the range is free
    FreeRanges::node_type entry = {};  // of a used range: so that release() needs no memory
  };
  using Ranges = std::map<std::size_t, Range>;  // by first unit; they cover [0, units_)

  [[nodiscard]] bool grow(std::size_t count);
  [[nodiscard]] FreeRanges::iterator find(std::size_t count);
  [[nodiscard]] Ranges::iterator take(FreeRanges::iterator found, std::size_t count,
                                      std::size_t bytes);
  void use_chunks(std::size_t first, std::size_t count);
  void give_back(std::size_t most_committed);
  void give_back(const Ranges::value_type& range, std::size_t most_committed);
  [[nodiscard]] std::size_t most_committed() const;
  [[nodiscard]] Ranges::iterator range_of(const void* block) const;
  void* address_of(std::size_t unit) const { return base_ + unit * kAlignment; }

  mutable std::mutex mutex_;
  std::function<bool()> is_scarce_;
  void* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  char* base_ = nullptr;        // aligned to kChunk
  std::size_t most_units_ = 0;  // that there are addresses for
  std::size_t units_ = 0;       // whose addresses are in use
  mutable Ranges ranges_;
  FreeRanges free_;
  std::vector<bool> is_used_;  // of each chunk: whether it has memory
  std::size_t committed_ = 0;  // bytes of these chunks
  std::size_t live_ = 0;       // bytes of blocks, in whole units
  std::size_t step_peak_ = 0, last_peak_ = 0;
  std::size_t grown_ = 0;  // bytes since memory was found not to be scarce
};

}  // namespace troika
