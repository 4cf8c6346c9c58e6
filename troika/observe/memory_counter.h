// Counts how many bytes of something are alive in this process, and the most that ever were. The
// code that allocates the memory counts it; reports read the counter.
#pragma once

#include <atomic>
#include <cstdint>

namespace troika {

// A counter of bytes, those of whole allocations. Thread-safe.
class MemoryCounter {
 public:
  void add(std::int64_t bytes) noexcept {
    const std::int64_t live = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::int64_t peak = peak_.load(std::memory_order_relaxed);
    while (peak < live && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
    }
  }
  void remove(std::int64_t bytes) noexcept { live_.fetch_sub(bytes, std::memory_order_relaxed); }
  // Sets the peak to what is alive now.
  void reset_peak() noexcept { peak_ = live_.load(); }
  [[nodiscard]] std::int64_t live() const noexcept { return live_; }
  [[nodiscard]] std::int64_t peak() const noexcept { return peak_; }

 private:
  std::atomic<std::int64_t> live_ = 0, peak_ = 0;
};

// Returns the counter of tensors in the process's own memory. LibTorch has one allocator for them,
// so there is one counter. An engine adds what it gives out itself.
[[nodiscard]] MemoryCounter& cpu_tensor_bytes();

}  // namespace troika
