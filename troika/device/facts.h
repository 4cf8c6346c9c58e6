// What is known of a device: for reports, for what fits, and for the cores that lie nearest.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace troika {

// The memory of a device as LibTorch's allocator has it, in bytes.
struct AllocatorFigures {
  std::uint64_t allocated = 0;  // held by tensors
  std::uint64_t cached = 0;     // kept for tensors to come
};

// The facts of one device. One that it does not state keeps its default.
struct DeviceFacts {
  std::string device;      // "cpu", "cuda:0"
  std::string name;        // "NVIDIA H200"
  std::string capability;  // "9.0": what its kernels are compiled for
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  double bandwidth = 0;    // of its memory, bytes a second, as rated
  std::string pci_bus_id;  // "0000:1b:00.0"
  // The part of the host that lies nearest to it.
  std::optional<int> numa_node;
  std::string nearest_cores;                  // as Linux lists them: "0-15,32-47"
  std::optional<AllocatorFigures> allocator;  // where it has one that counts
};

// Returns true if the device multiplies bf16 natively: a GPU of compute capability 8.0, a CPU with
// AMX or AVX512-BF16. Starts nothing on the device.
[[nodiscard]] bool multiplies_bf16(at::Device device);

// Returns the facts of a device, which has to exist. A GPU is opened in this process to count what
// is free of its memory: that takes some hundred MB of it until the process ends.
[[nodiscard]] DeviceFacts facts_of(at::Device device);

// Returns what does not change: no free memory, and no figures of the allocator. Opens nothing, so
// that a process may ask that computes on no device.
[[nodiscard]] DeviceFacts fixed_facts_of(at::Device device);

// Returns the facts of the host and of the devices of the plug-in, which this loads.
[[nodiscard]] std::vector<DeviceFacts> list_devices();

// Adds where the device `facts.pci_bus_id` is plugged in, from the files below `root`
// (sys/bus/pci/devices).
void add_location(DeviceFacts& facts, const std::filesystem::path& root = "/");

}  // namespace troika
