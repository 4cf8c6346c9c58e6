// What a GoogleTest says of the test device.
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

}  // namespace troika::test
