#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <troika/base/error.h>
#include <troika/observe/memory_counter.h>
#include <troika/train/block_heap.h>
#include <troika/train/memory_pressure.h>
#include <troika/train/tensor_memory.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

namespace troika {
namespace {

#ifdef TROIKA_SANITIZED  // it would not see what is wrong with a block that is used again
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

// The C library keeps smaller ones, and hands them out faster.
constexpr std::size_t kSmallestReused = std::size_t{64} << 10;

std::atomic<BlockHeap*> g_heap = nullptr;  // of reuse_tensor_memory(); lives as long as the process
std::atomic<bool> g_fills = false;

// LibTorch knows one allocator a device, for the whole process and for good: so these are.
MemoryCounter& counter(at::DeviceType device) {
  static MemoryCounter meta;
  return device == at::kMeta ? meta : cpu_tensor_bytes();
}

void fill(void* memory, std::size_t bytes) {
  if (g_fills) std::memset(memory, 0xff, bytes);
}

// LibTorch and oneDNN also free by pointer alone, and what another allocator has given out before
// ours was there.
void release_memory(void* memory) {
  if (memory == nullptr) return;
  if (BlockHeap* const heap = g_heap; heap != nullptr && heap->owns(memory)) {
    if (g_fills) fill(memory, heap->size_of(memory));
    counter(at::kCPU).remove(static_cast<std::int64_t>(heap->release(memory)));
    return;
  }
  const std::size_t bytes = ::malloc_usable_size(memory);
  fill(memory, bytes);
  counter(at::kCPU).remove(static_cast<std::int64_t>(bytes));
  c10::free_cpu(memory);
}

// Throws as LibTorch does where there is no memory, also without what is kept.
void* allocate_anew(std::size_t bytes) {
  try {
    return c10::alloc_cpu(bytes);
  } catch (const c10::Error&) {
    BlockHeap* const heap = g_heap;
    if (heap == nullptr || !heap->trim()) throw;
  }
  return c10::alloc_cpu(bytes);
}

// LibTorch's own CPU allocator, counted, with blocks of the heap where memory is reused.
class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    BlockHeap* const heap = g_heap;
    void* memory = nullptr;
    if (heap != nullptr && bytes >= kSmallestReused) memory = heap->allocate(bytes);
    const bool is_block = memory != nullptr;
    if (!is_block) memory = allocate_anew(bytes);
    if (memory != nullptr) {
      const std::size_t taken = is_block ? bytes : ::malloc_usable_size(memory);
      counter(at::kCPU).add(static_cast<std::int64_t>(taken));
      fill(memory, taken);
    }
    return {memory, memory, &release_memory, at::Device(at::kCPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release_memory; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

void release_size(void* size) {
  const std::unique_ptr<std::int64_t> owned(static_cast<std::int64_t*>(size));
  counter(at::kMeta).remove(*owned);
}

// No memory at all, but its size is kept to be counted off.
class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto size = std::make_unique<std::int64_t>(static_cast<std::int64_t>(bytes));
    counter(at::kMeta).add(*size);
    return {nullptr, size.release(), &release_size, at::Device(at::kMeta)};
  }
  void copy_data(void*, const void*, std::size_t) const override {}
};

// Replaces LibTorch's own.
constexpr std::uint8_t kPriority = 100;

bool is_counted_here(at::Device device) {
  return device.is_cpu() || device.type() == at::kMeta;
}

bool has_limited_addresses() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

// Several times what there is, since what was given back leaves addresses between blocks.
std::size_t addresses_to_reserve() {
  return 4 * static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

void make_heap() {
  if (kIsSanitized || has_limited_addresses()) return;
  auto heap =
      std::make_unique<BlockHeap>(addresses_to_reserve(), [] { return is_memory_scarce(); });
  g_heap = heap.release();
  // A child must not find the heap as another thread of its parent has half changed it.
  ::pthread_atfork([] { g_heap.load()->lock(); }, [] { g_heap.load()->unlock(); },
                   [] { g_heap.load()->unlock(); });
}

}  // namespace

void count_tensor_memory(at::DeviceType device) {
  check(device == at::kCPU || device == at::kMeta, "tensors of that device are not counted");
  static CpuAllocator cpu;
  static MetaAllocator meta;
  static const bool kFills = std::getenv("TROIKA_TEST_NAN_MEMORY") != nullptr;
  if (kFills) g_fills = true;
  c10::Allocator* const own = device == at::kCPU ? static_cast<c10::Allocator*>(&cpu) : &meta;
  if (c10::GetAllocator(device) != own) c10::SetAllocator(device, own, kPriority);
}

TensorMemory tensor_memory(at::Device device) {
  if (is_counted_here(device)) {
    const MemoryCounter& counted = counter(device.type());
    const BlockHeap* const heap = device.is_cpu() ? g_heap.load() : nullptr;
    const std::size_t cached = heap != nullptr ? heap->cached_bytes() : 0;
    return {counted.live(), counted.peak(), 0, static_cast<std::int64_t>(cached)};
  }
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return {stats.allocated_bytes[kAll].current, stats.allocated_bytes[kAll].peak,
          stats.reserved_bytes[kAll].peak};
}

void reset_peak(at::Device device) {
  if (is_counted_here(device)) return counter(device.type()).reset_peak();
  c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

void reuse_tensor_memory() {
  static std::once_flag once;
  std::call_once(once, [] {
    count_tensor_memory(at::kCPU);
    make_heap();
  });
}

void begin_memory_step() {
  BlockHeap* const heap = g_heap;
  if (heap == nullptr) return;
  static MemoryPressure pressure;
  if (pressure.is_high()) heap->trim();
  heap->begin_step();
}

void end_memory_step() {
  if (BlockHeap* const heap = g_heap) heap->end_step();
}

void trim_tensor_memory() {
  if (BlockHeap* const heap = g_heap) heap->trim();
}

void fill_tensor_memory_with_nan(bool fill) {
  g_fills = fill;
}

}  // namespace troika
