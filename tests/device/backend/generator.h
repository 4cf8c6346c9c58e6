// Random numbers of the test device: each device has a generator of its own, which
// torch::manual_seed() seeds. It draws what the CPU's draws from the same seed.
#pragma once

#include <ATen/core/Generator.h>

namespace troika::test {

// Returns the generator of a device; of the current one if the index is -1.
[[nodiscard]] const at::Generator& default_generator(c10::DeviceIndex device);
[[nodiscard]] at::Generator new_generator(c10::DeviceIndex device);

// Returns the generator that a CPU kernel draws from in the place of one of the device.
[[nodiscard]] at::Generator host_generator(const at::Generator& generator);

}  // namespace troika::test
