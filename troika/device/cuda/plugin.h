// The interface between the host's side (device/plugin.h) and the plug-in for CUDA: facts about
// devices, in plain types. The plug-in is a shared library that links LibTorch's CUDA libraries and
// nothing of troika. To load it is to give LibTorch its devices and our operators their kernels
// there. No header of CUDA's is needed to include this one.
#pragma once

#include <cstdint>
#include <string_view>

namespace troika::cuda {

// The version of this interface: a plug-in of another build is refused.
inline constexpr int kPluginVersion = 3;
inline constexpr const char* kPluginEntry = "troika_cuda_plugin";
inline constexpr const char* kPluginFile = "libtroika_cuda.so";
// Marks what the plug-in was built for, which follows it in the file up to a zero byte:
// "troika=0.1.0 libtorch=2.11.0 cuda=13000 oldest=80". `oldest` is the lowest compute capability
// that it has kernels for, times ten; 0 if not known. The host reads this before it loads the
// plug-in: one of another LibTorch would fail by its symbols, or crash.
inline constexpr std::string_view kStatement = "troika-cuda-plugin: ";

struct DeviceAttributes {
  char name[256];
  char pci_bus_id[32];  // "0000:1b:00.0"
  int capability_major, capability_minor;
  std::uint64_t total_bytes;
  double bandwidth;  // of its memory, bytes a second, as its clock and width give it; 0 if unknown
};

// Functions return null, or why they failed, as CUDA words it.
struct CudaPlugin {
  // Fills in the attributes. Takes no memory of the device.
  const char* (*describe)(int device, DeviceAttributes* attributes);
  // Reads the compute capability. Takes no memory of the device.
  const char* (*capability)(int device, int* major, int* minor);
  // Counts what is free. Opens the device in this process, which takes some hundred MB of it until
  // the process ends. The calling thread's current device stays.
  const char* (*read_free)(int device, std::uint64_t* bytes);
};

// The function that the plug-in exports under the name kPluginEntry. Returns null if `version` is
// not its own.
using PluginEntry = const CudaPlugin* (*)(int version);

}  // namespace troika::cuda
