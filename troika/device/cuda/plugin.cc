// Compiled against the headers of the CUDA runtime.
#include <cuda_runtime_api.h>
#include <torch/headeronly/version.h>
#include <troika/device/cuda/plugin.h>

#include <cstring>

#define TROIKA_TEXT_OF(value) #value
#define TROIKA_TEXT(value) TROIKA_TEXT_OF(value)

namespace troika::cuda {
namespace {

const char* text_of(cudaError_t code) {
  return code == cudaSuccess ? nullptr : cudaGetErrorString(code);
}

const char* count(int* devices) {
  return text_of(cudaGetDeviceCount(devices));
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

const char* read_memory(int device, DeviceAttributes& attributes) {
  int before = 0;
  cudaError_t code = cudaGetDevice(&before);
  if (code == cudaSuccess) code = cudaSetDevice(device);
  std::size_t available = 0, total = 0;
  if (code == cudaSuccess) code = cudaMemGetInfo(&available, &total);
  static_cast<void>(cudaSetDevice(before));
  attributes.free_bytes = available;
  attributes.total_bytes = total;
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
  attributes->multiprocessors = properties.multiProcessorCount;
  attributes->bandwidth = memory_bandwidth(device);
  const int size = sizeof(attributes->pci_bus_id);
  if (const char* error = text_of(cudaDeviceGetPCIBusId(attributes->pci_bus_id, size, device))) {
    return error;
  }
  return read_memory(device, *attributes);
}

constexpr Plugin kPlugin{CUDART_VERSION, count, describe};

}  // namespace
}  // namespace troika::cuda

extern "C" {

__attribute__((visibility("default"), used)) extern const char kTroikaCudaStatement[] =
    "troika-cuda-plugin: troika=" TROIKA_VERSION " libtorch=" TORCH_VERSION
    " cuda=" TROIKA_TEXT(CUDART_VERSION);

__attribute__((visibility("default"))) const troika::cuda::Plugin* troika_cuda_plugin(int version) {
  return version == troika::cuda::kPluginVersion ? &troika::cuda::kPlugin : nullptr;
}
}
