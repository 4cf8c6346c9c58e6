// The test device in a GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include "device/backend/test_device.h"

namespace troika::test {

// Fails the test for each fault that the devices have found by the end of the scope.
class ExpectNoDeviceFault {
 public:
  ExpectNoDeviceFault() { fail_for_each(); }
  ExpectNoDeviceFault(const ExpectNoDeviceFault&) = delete;
  ExpectNoDeviceFault& operator=(const ExpectNoDeviceFault&) = delete;
  ~ExpectNoDeviceFault() { fail_for_each(); }

 private:
  static void fail_for_each() {
    for (const std::string& fault : take_device_faults()) {
      ADD_FAILURE() << fault;
    }
  }
};

// Begins each test with devices that remember nothing, and fails it for their faults. Members of a
// fixture that is derived from it may lie on a device.
class TestDeviceFixture : public testing::Test {
 protected:
  TestDeviceFixture() { reset_test_devices(); }

 private:
  ExpectNoDeviceFault no_fault_;
};

}  // namespace troika::test
