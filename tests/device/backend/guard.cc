// Devices, streams and events as LibTorch asks for them.
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device/backend/faults.h"
#include "device/backend/launch.h"
#include "device/backend/memory.h"
#include "device/backend/timeline.h"

namespace troika::test {
namespace {

DeviceEvent& as_event(void* event) {
  return *static_cast<DeviceEvent*>(event);
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  [[nodiscard]] c10::DeviceType type() const override { return c10::DeviceType::HPU; }
  [[nodiscard]] c10::DeviceIndex deviceCount() const noexcept override { return kTestDevices; }
  [[nodiscard]] c10::Device getDevice() const override { return test_device(current_device()); }
  [[nodiscard]] c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) {
      exchange_current_device(test_device(device.index()).index());
    }
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) {
      exchange_current_device(device.index());
    }
  }

  [[nodiscard]] c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }
  [[nodiscard]] c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  [[nodiscard]] c10::Stream getStreamFromGlobalPool(c10::Device device,
                                                    bool /*high*/) const override {
    return pool_stream(device.index());
  }
  [[nodiscard]] c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return pool_stream(device.index());
  }
  [[nodiscard]] c10::Stream exchangeStream(c10::Stream stream) const override {
    return exchange_current_stream(stream);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    throw_if_failed(stream.device_index());
    const int number = stream_number(stream);
    const std::lock_guard turn(Timeline::instance().turn(number));
    if (*event == nullptr) {
      *event = new DeviceEvent;
    }
    as_event(*event) = {Timeline::instance().of_stream(number), 0, std::chrono::steady_clock::now(),
                        stream.device_index()};
  }
  void block(void* event, const c10::Stream& stream) const override {
    throw_if_failed(stream.device_index());
    Timeline::instance().wait_on_stream(stream_number(stream), as_event(event).clock);
  }
  [[nodiscard]] bool queryEvent(void* event) const override {
    throw_if_failed(as_event(event).device);
    if (!Timeline::instance().has_ended(as_event(event))) {
      return false;
    }
    wait_on_host(as_event(event).clock);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    throw_if_failed(as_event(event).device);
    count_event(&DeviceCounters::host_waits);
    wait_on_host(as_event(event).clock);
  }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<DeviceEvent*>(event);
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex /*device*/) const override {
    return std::chrono::duration<double, std::milli>(as_event(to).time - as_event(from).time)
        .count();
  }

  [[nodiscard]] bool queryStream(const c10::Stream& stream) const override {
    throw_if_failed(stream.device_index());
    const int number = stream_number(stream);
    const std::lock_guard turn(Timeline::instance().turn(number));
    if (!Timeline::instance().has_ended(number)) {
      return false;
    }
    wait_on_host(Timeline::instance().of_stream(number));
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    throw_if_failed(stream.device_index());
    wait_for_stream(stream);
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    const int index = device_or_current(device);
    throw_if_failed(index);
    count_event(&DeviceCounters::device_synchronizations);
    check_device_synchronization(index);
    for (int id = 0; id < kStreamsPerDevice; ++id) {
      const int number = index * kStreamsPerDevice + id;
      const std::lock_guard turn(Timeline::instance().turn(number));
      wait_on_host(Timeline::instance().of_stream(number));
    }
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    DeviceMemory::instance().recordStream(data, stream);
  }
};

C10_REGISTER_GUARD_IMPL(HPU, Guard);

}  // namespace
}  // namespace troika::test
