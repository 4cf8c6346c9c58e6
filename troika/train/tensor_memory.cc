#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>
#include <troika/base/error.h>
#include <troika/observe/memory_counter.h>
#include <troika/train/tensor_memory.h>

#include <memory>

namespace troika {
namespace {

// LibTorch knows one allocator a device, for the whole process and for good: so these are.
MemoryCounter& counter(at::DeviceType device) {
  static MemoryCounter meta;
  return device == at::kMeta ? meta : cpu_tensor_bytes();
}

std::int64_t size_of(void* memory) {
  return static_cast<std::int64_t>(::malloc_usable_size(memory));
}

void release_memory(void* memory) {
  if (memory == nullptr) return;
  counter(at::kCPU).remove(size_of(memory));
  c10::free_cpu(memory);
}

// LibTorch's own CPU allocator, counted.
class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory = c10::alloc_cpu(bytes);
    if (memory != nullptr) counter(at::kCPU).add(size_of(memory));
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

}  // namespace

void count_tensor_memory(at::DeviceType device) {
  check(device == at::kCPU || device == at::kMeta, "tensors of that device are not counted");
  static CpuAllocator cpu;
  static MetaAllocator meta;
  c10::Allocator* const own = device == at::kCPU ? static_cast<c10::Allocator*>(&cpu) : &meta;
  if (c10::GetAllocator(device) != own) c10::SetAllocator(device, own, kPriority);
}

TensorMemory tensor_memory(at::Device device) {
  if (is_counted_here(device)) {
    const MemoryCounter& counted = counter(device.type());
    return {counted.live(), counted.peak(), 0};
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

}  // namespace troika
