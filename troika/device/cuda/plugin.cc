// Compiled against the headers of the CUDA runtime.
#include <cuda_runtime_api.h>
#include <torch/headeronly/version.h>
#include <troika/device/cuda/plugin.h>

#include <cstring>
#include <thread>

#define TROIKA_TEXT_OF(value) #value
#define TROIKA_TEXT(value) TROIKA_TEXT_OF(value)

namespace troika::cuda {
namespace {

const char* text_of(cudaError_t code) {
  return code == cudaSuccess ? nullptr : cudaGetErrorString(code);
}

// One attribute; 0 where the device does not state it.
int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, device) == cudaSuccess ? value : 0;
}

// Two transfers a clock: kHz x bits.
double memory_bandwidth(int device) {
  const double clock = 1e3 * attribute(cudaDevAttrMemoryClockRate, device);
  return 2 * clock * attribute(cudaDevAttrGlobalMemoryBusWidth, device) / 8;
}

// In a thread of its own, which has a current device of its own: to set one is to open it, and the
// one that was current before may be of another rank.
const char* read_free(int device, std::uint64_t* bytes) {
  std::size_t available = 0, total = 0;
  cudaError_t code = cudaSuccess;
  std::thread([&] {
    code = cudaSetDevice(device);
    if (code == cudaSuccess) code = cudaMemGetInfo(&available, &total);
  }).join();
  *bytes = available;
  return text_of(code);
}

const char* describe(int device, DeviceAttributes* attributes) {
  *attributes = {};
  cudaDeviceProp properties;
  if (const char* error = text_of(cudaGetDeviceProperties(&properties, device))) return error;
  static_assert(sizeof(properties.name) == sizeof(attributes->name));
  std::memcpy(attributes->name, properties.name, sizeof(properties.name));
  attributes->capability_major = properties.major;
  attributes->capability_minor = properties.minor;
  attributes->total_bytes = properties.totalGlobalMem;
  attributes->bandwidth = memory_bandwidth(device);
  const int size = sizeof(attributes->pci_bus_id);
  return text_of(cudaDeviceGetPCIBusId(attributes->pci_bus_id, size, device));
}

const char* capability(int device, int* major, int* minor) {
  const cudaError_t code = cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device);
  if (code != cudaSuccess) return text_of(code);
  return text_of(cudaDeviceGetAttribute(minor, cudaDevAttrComputeCapabilityMinor, device));
}

constexpr CudaPlugin kPlugin{describe, capability, read_free};

}  // namespace
}  // namespace troika::cuda

extern "C" {

__attribute__((visibility("default"), used)) extern const char kTroikaCudaStatement[] =
    "troika-cuda-plugin: troika=" TROIKA_VERSION " libtorch=" TORCH_VERSION
    " cuda=" TROIKA_TEXT(CUDART_VERSION) " oldest=" TROIKA_TEXT(TROIKA_CUDA_OLDEST);

__attribute__((visibility("default"))) const troika::cuda::CudaPlugin* troika_cuda_plugin(
    int version) {
  return version == troika::cuda::kPluginVersion ? &troika::cuda::kPlugin : nullptr;
}
}
