// The device that a test computes on, where the test is for any device: a program links the test
// device (under_test.cc), or GPUs (cuda/under_test.cc).
#pragma once

#include <c10/core/Device.h>

#include <memory>

namespace troika::test {

// Returns the device of this index. On the test device there are four; on GPUs all are the first,
// which ranks share.
[[nodiscard]] c10::Device device_under_test(int index = 0);

// Makes the devices ready. Fails the test for each fault that the test device has found by the end
// of the scope, waits for all of a device among them; GPUs find none. Make it first in a test: a
// pass on the host before it could hide GPUs from LibTorch.
class DeviceWatch {
 public:
  DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;
  ~DeviceWatch();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troika::test
