// The allocator of the test devices.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

#include "device/backend/addresses.h"
#include "device/backend/clock.h"

namespace troika::test {

// Hands out the memory of all test devices as LibTorch's allocator for CUDA does: what a tensor
// leaves is given again to the stream that it was allocated on, once the streams of recordStream()
// are done with it. New memory is poisoned. Thread-safe.
class DeviceMemory final : public c10::DeviceAllocator {
 public:
  [[nodiscard]] static DeviceMemory& instance();

  // Allocates on the current stream of the current device.
  c10::DataPtr allocate(std::size_t bytes) override;
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, std::size_t bytes) const override;

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override;

  void set_capacity(int device, std::size_t bytes);

 private:
  struct Block {
    Address begin = 0;
    std::size_t size = 0;
    std::size_t requested = 0;
    int stream = 0;        // that it was allocated on
    std::set<int> others;  // which recordStream() named
    Clock last_use;        // what these streams had been given to do when it was freed
  };
  using Place = std::tuple<int, std::size_t, Address>;  // stream, size, first byte
  struct Device {
    std::size_t capacity = kDefaultCapacity;
    std::map<Address, std::size_t> unused;  // by first byte: sizes
    std::map<Place, Block> cached;
    std::vector<Block> waiting;  // freed, but perhaps in use on other streams
    c10::CachingDeviceAllocator::DeviceStats stats;
  };

  DeviceMemory();
  static void free(void* address);

  [[nodiscard]] bool find_block(Device& device, std::size_t size, Block& block);
  [[nodiscard]] bool take_cached(Device& device, std::size_t size, Block& block);
  [[nodiscard]] bool take_unused(Device& device, std::size_t size, Block& block);
  void cache_what_ended(Device& device);
  void await_other_streams(Device& device);
  void give_back(Device& device);
  static void account(Device& device, const Block& block);
  [[noreturn]] static void throw_out_of_memory(Device& device, int index, std::size_t bytes);

  std::mutex mutex_;
  // What a device gives of what it says to have: all, or what TROIKA_TEST_DEVICE_GIVES says.
  std::size_t given_;
  std::array<Device, kTestDevices> devices_;
  std::map<Address, Block> blocks_;  // in use
};

}  // namespace troika::test
