// The test device as the device under test: it finds missing waits.
#include "device/under_test.h"

#include "device/backend/checks.h"

namespace troika::test {

struct DeviceWatch::State {
  ExpectNoDeviceFault no_fault;
  ForbidDeviceSynchronization forbidden;
};

c10::Device device_under_test(int index) {
  return test_device(index);
}

DeviceWatch::DeviceWatch() : state_(std::make_unique<State>()) {}
DeviceWatch::~DeviceWatch() = default;

}  // namespace troika::test
