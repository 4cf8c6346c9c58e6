// The test device as LibTorch's accelerator.
#include <ATen/detail/HPUHooksInterface.h>

#include "device/backend/generator.h"
#include "device/backend/memory.h"
#include "device/backend/pinned.h"
#include "device/backend/timeline.h"

namespace at {  // the registry's

class TestDeviceHooks final : public HPUHooksInterface {
 public:
  explicit TestDeviceHooks(HPUHooksArgs /*none*/) {}

  void init() const override {}
  [[nodiscard]] bool hasHPU() const override { return true; }
  [[nodiscard]] bool isBuilt() const override { return true; }
  [[nodiscard]] bool isAvailable() const override { return true; }
  [[nodiscard]] bool hasPrimaryContext(DeviceIndex /*device*/) const override { return true; }

  [[nodiscard]] DeviceIndex deviceCount() const override { return troika::test::kTestDevices; }
  [[nodiscard]] DeviceIndex getCurrentDevice() const override {
    return static_cast<DeviceIndex>(troika::test::current_device());
  }
  void setCurrentDevice(DeviceIndex device) const override {
    troika::test::exchange_current_device(troika::test::test_device(device).index());
  }
  [[nodiscard]] DeviceIndex exchangeDevice(DeviceIndex device) const override {
    const int before = troika::test::current_device();
    setCurrentDevice(device);
    return static_cast<DeviceIndex>(before);
  }
  [[nodiscard]] DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }

  [[nodiscard]] Device getDeviceFromPtr(void* data) const override {
    return troika::test::device_of_address(data);
  }
  [[nodiscard]] Allocator* getPinnedMemoryAllocator() const override {
    return &troika::test::pinned_memory();
  }
  [[nodiscard]] bool isPinnedPtr(const void* data) const override {
    return troika::test::is_pinned_address(data);
  }

  [[nodiscard]] const Generator& getDefaultGenerator(DeviceIndex device) const override {
    return troika::test::default_generator(device);
  }
  [[nodiscard]] Generator getNewGenerator(DeviceIndex device) const override {
    return troika::test::new_generator(device);
  }
};

// The registry knows hooks by this name.
using HPUHooks = TestDeviceHooks;
REGISTER_HPU_HOOKS(HPUHooks);

}  // namespace at

namespace troika::test {
namespace {

const bool kAllocatorIsRegistered = [] {
  c10::SetAllocator(c10::DeviceType::HPU, &DeviceMemory::instance());
  return true;
}();

}  // namespace
}  // namespace troika::test
