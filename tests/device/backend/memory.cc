#include "device/backend/memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "device/backend/accesses.h"
#include "device/backend/late_copies.h"
#include "device/backend/launch.h"
#include "device/backend/timeline.h"

namespace troika::test {
namespace {

constexpr std::size_t kGranularity = 512;  // bytes; as CUDA's allocator rounds

std::size_t round_up(std::size_t bytes) {
  return (bytes + kGranularity - 1) / kGranularity * kGranularity;
}

c10::CachingAllocator::Stat& total(c10::CachingAllocator::StatArray& array) {
  return array[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

}  // namespace

DeviceMemory& DeviceMemory::instance() {
  static auto* const memory = new DeviceMemory;
  return *memory;
}

DeviceMemory::DeviceMemory() : given_(kDefaultCapacity) {
  if (const char* given = std::getenv("TROIKA_TEST_DEVICE_GIVES")) given_ = std::stoull(given);
  for (int device = 0; device < kTestDevices; ++device) {
    const Range all = addresses_of(device);
    devices_[static_cast<std::size_t>(device)].unused[all.begin] = all.end - all.begin;
  }
}

c10::DataPtr DeviceMemory::allocate(std::size_t bytes) {
  const int index = current_device();
  if (bytes == 0) {
    return {nullptr, nullptr, &free, test_device(index)};
  }
  const int stream = stream_number(current_stream(current_device()));
  Block block{0, round_up(bytes), bytes, stream, {}, {}};
  {
    const std::lock_guard lock(mutex_);
    Device& device = devices_[static_cast<std::size_t>(index)];
    if (!find_block(device, block.size, block)) {
      throw_out_of_memory(device, index, bytes);
    }
    account(device, block);
    blocks_[block.begin] = block;
  }
  auto* const address = reinterpret_cast<void*>(block.begin);
  c10::DataPtr data(address, address, &free, test_device(index));
  const Range range{block.begin, block.begin + block.size};
  const Clock clock = Timeline::instance().of_stream(stream);
  LateCopies::instance().execute_touching(range, clock);
  AccessHistory::instance().reuse(range, stream, clock);
  poison(storage_of(address), block.size);
  return data;
}

// Looks in the cache, then in what was never used, then gives back what others have cached, then
// waits.
bool DeviceMemory::find_block(Device& device, std::size_t size, Block& block) {
  cache_what_ended(device);
  if (take_cached(device, size, block) || take_unused(device, size, block)) {
    return true;
  }
  ++device.stats.num_alloc_retries;
  give_back(device);
  if (take_unused(device, size, block)) {
    return true;
  }
  await_other_streams(device);
  give_back(device);
  return take_unused(device, size, block);
}

bool DeviceMemory::take_cached(Device& device, std::size_t size, Block& block) {
  const auto found = device.cached.lower_bound({block.stream, size, 0});
  if (found == device.cached.end() || found->second.stream != block.stream ||
      found->second.size != size) {
    return false;
  }
  block.begin = found->second.begin;
  device.cached.erase(found);
  return true;
}

bool DeviceMemory::take_unused(Device& device, std::size_t size, Block& block) {
  if (static_cast<std::size_t>(total(device.stats.reserved_bytes).current) + size >
      std::min(device.capacity, given_)) {
    return false;
  }
  for (auto hole = device.unused.begin(); hole != device.unused.end(); ++hole) {
    if (hole->second < size) {
      continue;
    }
    block.begin = hole->first;
    if (hole->second > size) {
      device.unused[hole->first + size] = hole->second - size;
    }
    device.unused.erase(hole);
    total(device.stats.reserved_bytes).increase(size);
    ++device.stats.num_device_alloc;
    return true;
  }
  return false;
}

void DeviceMemory::account(Device& device, const Block& block) {
  total(device.stats.allocation).increase(1);
  total(device.stats.active).increase(1);
  total(device.stats.allocated_bytes).increase(block.size);
  total(device.stats.active_bytes).increase(block.size);
  total(device.stats.requested_bytes).increase(block.requested);
}

void DeviceMemory::throw_out_of_memory(Device& device, int index, std::size_t bytes) {
  ++device.stats.num_ooms;
  using c10::CachingAllocator::format_size;
  const auto in_use = static_cast<std::size_t>(total(device.stats.allocated_bytes).current);
  TORCH_CHECK_WITH(OutOfMemoryError, false, "hpu:", index,
                   " is out of memory: ", format_size(bytes), " are asked for, ",
                   format_size(in_use), " of ", format_size(device.capacity), " are in use");
}

void DeviceMemory::free(void* address) {
  if (address == nullptr) {
    return;
  }
  DeviceMemory& memory = instance();
  const std::lock_guard lock(memory.mutex_);
  const auto found = memory.blocks_.find(reinterpret_cast<Address>(address));
  Block block = std::move(found->second);
  memory.blocks_.erase(found);
  Device& device = memory.devices_[static_cast<std::size_t>(block.stream / kStreamsPerDevice)];
  total(device.stats.allocation).decrease(1);
  total(device.stats.allocated_bytes).decrease(block.size);
  total(device.stats.requested_bytes).decrease(block.requested);
  for (const int stream : block.others) {
    block.last_use.learn(Timeline::instance().of_stream(stream));
  }
  device.waiting.push_back(std::move(block));
  memory.cache_what_ended(device);
}

// CUDA's allocator asks the events of the other streams. Here they have ended once the host or the
// stream that gets the memory has waited for them.
void DeviceMemory::cache_what_ended(Device& device) {
  std::erase_if(device.waiting, [&](Block& block) {
    if (!block.others.empty() &&
        !Timeline::instance().of_stream(block.stream).knows(block.last_use)) {
      return false;
    }
    total(device.stats.active).decrease(1);
    total(device.stats.active_bytes).decrease(block.size);
    const Place place{block.stream, block.size, block.begin};
    device.cached.emplace(place, std::move(block));
    return true;
  });
}

void DeviceMemory::await_other_streams(Device& device) {
  for (const Block& block : device.waiting) {
    Timeline::instance().wait_on_host(block.last_use);
  }
  cache_what_ended(device);
}

// Returns cached blocks to what any stream may take. A device waits for all of its streams before
// it does.
void DeviceMemory::give_back(Device& device) {
  for (const auto& [place, block] : device.cached) {
    AccessHistory::instance().forget({block.begin, block.begin + block.size});
    const auto hole = device.unused.emplace(block.begin, block.size).first;
    const auto next = std::next(hole);
    if (next != device.unused.end() && hole->first + hole->second == next->first) {
      hole->second += next->second;
      device.unused.erase(next);
    }
    if (hole != device.unused.begin()) {
      const auto previous = std::prev(hole);
      if (previous->first + previous->second == hole->first) {
        previous->second += hole->second;
        device.unused.erase(hole);
      }
    }
    total(device.stats.reserved_bytes).decrease(block.size);
    ++device.stats.num_device_free;
  }
  device.cached.clear();
}

c10::DeleterFnPtr DeviceMemory::raw_deleter() const {
  return &free;
}

void DeviceMemory::copy_data(void* destination, const void* source, std::size_t bytes) const {
  std::memcpy(storage_of(destination), storage_of(source), bytes);
}

void DeviceMemory::emptyCache(c10::MempoolId_t /*pool*/) {
  LateCopies::instance().execute_all();
  const std::lock_guard lock(mutex_);
  for (Device& device : devices_) {
    cache_what_ended(device);
    give_back(device);
  }
}

void DeviceMemory::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(reinterpret_cast<Address>(data.get()));
  if (found != blocks_.end() && found->second.stream != stream_number(stream)) {
    found->second.others.insert(stream_number(stream));
  }
}

c10::CachingDeviceAllocator::DeviceStats DeviceMemory::getDeviceStats(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  return devices_.at(static_cast<std::size_t>(device)).stats;
}

void DeviceMemory::resetAccumulatedStats(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  auto& stats = devices_.at(static_cast<std::size_t>(device)).stats;
  for (auto* const array : {&stats.allocation, &stats.active, &stats.allocated_bytes,
                            &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
    total(*array).reset_accumulated();
  }
  stats.num_alloc_retries = stats.num_ooms = stats.num_device_alloc = stats.num_device_free = 0;
}

void DeviceMemory::resetPeakStats(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  auto& stats = devices_.at(static_cast<std::size_t>(device)).stats;
  for (auto* const array : {&stats.allocation, &stats.active, &stats.allocated_bytes,
                            &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
    total(*array).reset_peak();
  }
}

std::pair<std::size_t, std::size_t> DeviceMemory::getMemoryInfo(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  Device& own = devices_.at(static_cast<std::size_t>(device));
  const auto reserved = static_cast<std::size_t>(total(own.stats.reserved_bytes).current);
  return {own.capacity - std::min(reserved, own.capacity), own.capacity};
}

void DeviceMemory::set_capacity(int device, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  devices_.at(static_cast<std::size_t>(device)).capacity = bytes;
}

LimitDeviceMemory::LimitDeviceMemory(std::size_t bytes, int device) : device_(device) {
  DeviceMemory::instance().set_capacity(device, bytes);
}

LimitDeviceMemory::~LimitDeviceMemory() {
  DeviceMemory::instance().set_capacity(device_, kDefaultCapacity);
}

void reset_test_devices() {
  for (int stream = 0; stream < kStreams; ++stream) {
    wait_on_host(Timeline::instance().of_stream(stream));
  }
  DeviceMemory::instance().emptyCache();
  AccessHistory::instance().forget({0, ~Address{0}});
  for (int device = 0; device < kTestDevices; ++device) {
    DeviceMemory::instance().resetPeakStats(static_cast<c10::DeviceIndex>(device));
    DeviceMemory::instance().resetAccumulatedStats(static_cast<c10::DeviceIndex>(device));
  }
  static_cast<void>(take_device_faults());
}

}  // namespace troika::test
