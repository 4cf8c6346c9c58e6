#include "device/backend/timeline.h"

#include <c10/util/Exception.h>

#include <atomic>

namespace troika::test {
namespace {

thread_local int device_of_thread = 0;
thread_local std::array<c10::StreamId, kTestDevices> streams_of_thread{};

}  // namespace

int stream_number(const c10::Stream& stream) {
  TORCH_CHECK(stream.device_type() == c10::DeviceType::HPU && stream.id() >= 0 &&
                  stream.id() < kStreamsPerDevice,
              "not a stream of the test device: ", stream);
  return stream.device_index() * kStreamsPerDevice + static_cast<int>(stream.id());
}

std::string stream_name(int stream) {
  const int device = stream / kStreamsPerDevice;
  std::string name = "stream " + std::to_string(stream % kStreamsPerDevice);
  return device == 0 ? name : name + " of hpu:" + std::to_string(device);
}

Timeline& Timeline::instance() {
  // Outlives every static object: a tensor may be freed after the end of main().
  static auto* const timeline = new Timeline;
  return *timeline;
}

Clock Timeline::begin(int stream) {
  const std::lock_guard lock(mutex_);
  Clock& clock = streams_[static_cast<std::size_t>(stream)];
  clock.learn(host_);
  clock.advance(stream);
  looks_[static_cast<std::size_t>(stream)] = 0;
  return clock;
}

Clock Timeline::of_stream(int stream) {
  const std::lock_guard lock(mutex_);
  Clock clock = streams_[static_cast<std::size_t>(stream)];
  clock.learn(host_);
  return clock;
}

Clock Timeline::of_host() {
  const std::lock_guard lock(mutex_);
  return host_;
}

void Timeline::wait_on_stream(int stream, const Clock& clock) {
  const std::lock_guard lock(mutex_);
  streams_[static_cast<std::size_t>(stream)].learn(clock);
}

void Timeline::wait_on_host(const Clock& clock) {
  const std::lock_guard lock(mutex_);
  host_.learn(clock);
}

bool Timeline::look(const Clock& clock, int& looks) {
  if (!host_.knows(clock) && looks++ == 0) {
    return false;
  }
  host_.learn(clock);
  return true;
}

bool Timeline::has_ended(DeviceEvent& event) {
  const std::lock_guard lock(mutex_);
  return look(event.clock, event.looks);
}

bool Timeline::has_ended(int stream) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<std::size_t>(stream);
  return look(streams_[index], looks_[index]);
}

int current_device() noexcept {
  return device_of_thread;
}

int exchange_current_device(int device) noexcept {
  return std::exchange(device_of_thread, device);
}

int device_or_current(int index) noexcept {
  return index < 0 ? device_of_thread : index;
}

c10::Stream current_stream(int device) {
  const auto index = static_cast<std::size_t>(device_or_current(device));
  return c10::Stream(c10::Stream::UNSAFE, test_device(static_cast<int>(index)),
                     streams_of_thread.at(index));
}

c10::Stream exchange_current_stream(const c10::Stream& stream) {
  const c10::Stream before = current_stream(stream.device_index());
  streams_of_thread.at(static_cast<std::size_t>(stream.device_index())) = stream.id();
  return before;
}

c10::Stream pool_stream(int device) {
  static std::array<std::atomic<int>, kTestDevices> next{};
  const int index = device_or_current(device);
  const int turn = next.at(static_cast<std::size_t>(index))++ % (kStreamsPerDevice - 1);
  return c10::Stream(c10::Stream::UNSAFE, test_device(index), 1 + turn);
}

}  // namespace troika::test
