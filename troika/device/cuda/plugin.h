// The interface between the host's side (device/plugin.h) and the plug-in for CUDA: facts about
// devices, in plain types. The plug-in is a shared library that links LibTorch's CUDA libraries and
// nothing of troika. To load it is to give LibTorch its devices and our operators their kernels
// there. No header of CUDA's is needed to include this one.
#pragma once

#include <cstdint>
#include <string_view>

namespace troika::cuda {

// The version of this interface: a plug-in of another build is refused.
inline constexpr int kPluginVersion = 1;
inline constexpr const char* kPluginEntry = "troika_cuda_plugin";
inline constexpr const char* kPluginFile = "libtroika_cuda.so";
// The plug-in's file holds this, and behind it up to a zero byte what it was built for:
// "troika=0.1.0 libtorch=2.11.0 cuda=13000". The host reads it before it loads the plug-in: one of
// another LibTorch would fail by its symbols, or crash.
inline constexpr std::string_view kStatement = "troika-cuda-plugin: ";

struct DeviceAttributes {
  char name[256];
  char pci_bus_id[32];  // "0000:1b:00.0"
  int capability_major, capability_minor;
  int multiprocessors;
  std::uint64_t total_bytes, free_bytes;
  double bandwidth;  // of its memory, bytes a second, as its clock and width give it; 0 if unknown
};

// Functions return null, or why they failed, as CUDA words it.
struct Plugin {
  int runtime_version;  // 13000 is CUDA 13.0
  const char* (*count)(int* devices);
  const char* (*describe)(int device, DeviceAttributes* attributes);
};

// The function that the plug-in exports under the name kPluginEntry. Returns null if `version` is
// not its own.
using PluginEntry = const Plugin* (*)(int version);

}  // namespace troika::cuda
