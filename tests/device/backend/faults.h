// Faults and counters: what tests ask about afterwards.
#pragma once

#include <string>

#include "device/backend/test_device.h"

namespace troika::test {

// Remembers the fault for take_device_faults(), and throws it. Thread-safe.
[[noreturn]] void throw_device_fault(const std::string& what);

// Throws if a ForbidDeviceSynchronization lives.
void check_device_synchronization(int device);

// Counts a kernel or copy of the device, and throws if it is the one that a FailDevice names.
void count_towards_failure(int device);
// Throws if the device has failed.
void throw_if_failed(int device);

// Adds one to a counter. Thread-safe.
void count_event(std::int64_t DeviceCounters::*counter);

}  // namespace troika::test
