// Plug-ins for devices that not every machine has; there is one, for CUDA. LibTorch asks once, when
// it is first used, which devices it has: a plug-in that comes later changes nothing. So programs
// load it first, or link `troika::cuda`, which is the plug-in.
#pragma once

#include <string>

namespace troika {

// The devices of a plug-in, or why there are none.
struct DevicePlugin {
  std::string type;            // "cuda"
  int devices = 0;             // how many this process can use: 0 unless the plug-in is loaded
  std::string libraries = {};  // "CUDA 13.0", if it is loaded
  // Why there is no device, in one line, and what to do about it. Empty if there is one.
  std::string reason = {};
  std::string hint = {};

  [[nodiscard]] bool usable() const { return devices > 0; }
};

// Loads the plug-in, once for the process, where there is a driver with a device. Call it before
// anything of LibTorch. It takes a second where there is a device, and no time where there is none.
// Thread safe.
[[nodiscard]] const DevicePlugin& load_device_plugin();

}  // namespace troika
