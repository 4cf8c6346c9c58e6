// Addresses of device memory. One that a tensor holds lies in a range of pages that nothing may
// touch. What is stored there lies at a fixed distance, in pages that only kernels of the back end
// find: a host pointer to a tensor's data crashes at any time, also while other threads run
// kernels.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

#include "device/backend/test_device.h"

namespace troika::test {

using Address = std::uintptr_t;

struct Range {
  Address begin = 0;
  Address end = 0;
};

// Returns the addresses that belong to a device, more than it has memory, so that holes do no harm.
[[nodiscard]] Range addresses_of(int device);

// Returns where the bytes at this address of device memory really lie.
[[nodiscard]] void* storage_of(const void* device_address);
[[nodiscard]] bool is_device_address(const void* address);
[[nodiscard]] c10::Device device_of_address(const void* address);

// Overwrites memory that has no values yet: with NaN in every floating-point type, and with -1 in
// every integer.
void poison(void* begin, std::size_t bytes);

}  // namespace troika::test
