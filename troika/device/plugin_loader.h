// Internal. How the plug-in for CUDA is found, checked and loaded.
#pragma once

#include <troika/device/choose.h>
#include <troika/device/cuda/plugin.h>
#include <troika/device/plugin.h>

#include <filesystem>
#include <optional>
#include <string>

namespace troika::detail {

// The files of the plug-in and of the driver's library.
struct PluginFiles {
  std::optional<std::filesystem::path> plugin;  // nothing if there is none
  std::string driver = "libcuda.so.1";
};

struct LoadedPlugin {
  DevicePlugin facts;
  const cuda::CudaPlugin* functions = nullptr;  // null unless it is loaded
};

// Checks everything that can be checked before it loads the plug-in: the driver, its version, its
// devices, what the plug-in was built for.
[[nodiscard]] LoadedPlugin load_plugin_from(const PluginFiles& files);

// Returns true if a device of the plug-in multiplies bf16 natively; false where it does not say.
[[nodiscard]] bool multiplies_bf16(const cuda::CudaPlugin& plugin, int index);

// Returns reason_for_cpu("auto") where the plug-in has said this, and the driver shows as many
// GPUs.
[[nodiscard]] std::string reason_for_cpu(HostPosition place, const DevicePlugin& plugin, int shown);

// Returns the plug-in of this process, which it loads if that has not happened.
[[nodiscard]] const LoadedPlugin& loaded_plugin();

}  // namespace troika::detail
