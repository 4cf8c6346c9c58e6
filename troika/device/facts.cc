#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <troika/base/error.h>
#include <troika/device/device.h>
#include <troika/device/facts.h>
#include <troika/device/plugin_loader.h>
#include <troika/observe/machine.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <utility>

namespace troika {
namespace {

void add_host(DeviceFacts& facts) {
  const MachineFacts machine = machine_facts();
  facts.name = machine.cpu_model;
  facts.total_bytes = machine.usable_memory_bytes;
}

void add_plugin_facts(DeviceFacts& facts, const cuda::CudaPlugin& plugin, int index) {
  cuda::DeviceAttributes attributes{};
  if (const char* error = plugin.describe(index, &attributes)) {
    throw UsageError(facts.device + " does not say what it is: " + error);
  }
  facts.name = attributes.name;
  facts.capability = std::to_string(attributes.capability_major) + "." +
                     std::to_string(attributes.capability_minor);
  facts.total_bytes = attributes.total_bytes;
  facts.bandwidth = attributes.bandwidth;
  facts.pci_bus_id = attributes.pci_bus_id;
  add_location(facts);
}

std::uint64_t current(const c10::CachingAllocator::StatArray& statistic) {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, statistic[kAll].current));
}

void add_free_memory(DeviceFacts& facts, const cuda::CudaPlugin& plugin, int index) {
  if (const char* error = plugin.read_free(index, &facts.free_bytes)) {
    throw UsageError(facts.device + " does not say how much memory is free: " + error);
  }
}

c10::DeviceIndex device_index(at::Device device) {
  return device.has_index() ? device.index() : c10::DeviceIndex{0};
}

// The allocator of a device, if it counts.
c10::DeviceAllocator* allocator_of(at::Device device) {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

// One that counts nothing throws: then the figures stay unknown.
void add_allocator_figures(DeviceFacts& facts, at::Device device) {
  c10::DeviceAllocator* const allocator = allocator_of(device);
  if (allocator == nullptr) return;
  try {
    const auto statistics = allocator->getDeviceStats(device_index(device));
    const std::uint64_t allocated = current(statistics.allocated_bytes);
    facts.allocator = {allocated, current(statistics.reserved_bytes) - allocated};
  } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch)
  }
}

// As the allocator states it, for devices without a plug-in.
std::pair<std::uint64_t, std::uint64_t> free_and_total(at::Device device) {
  c10::DeviceAllocator* const allocator = allocator_of(device);
  if (allocator == nullptr) return {0, 0};
  try {
    return allocator->getMemoryInfo(device_index(device));
  } catch (const c10::Error&) {
    return {0, 0};
  }
}

const cuda::CudaPlugin* plugin_of(at::Device device) {
  return device.is_cuda() ? detail::loaded_plugin().functions : nullptr;
}

std::string first_line_of(const std::filesystem::path& file) {
  std::string line;
  std::ifstream stream(file);
  std::getline(stream, line);
  return line;
}

}  // namespace

void add_location(DeviceFacts& facts, const std::filesystem::path& root) {
  std::string id = facts.pci_bus_id;
  std::ranges::transform(id, id.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::filesystem::path folder = root / "sys/bus/pci/devices" / id;
  if (id.empty() || !std::filesystem::is_directory(folder)) return;
  facts.nearest_cores = first_line_of(folder / "local_cpulist");
  const std::string node = first_line_of(folder / "numa_node");
  int number = -1;
  std::from_chars(node.data(), node.data() + node.size(), number);
  if (number >= 0) facts.numa_node = number;  // -1: the machine has one, or does not say
}

bool detail::multiplies_bf16(const cuda::CudaPlugin& plugin, int index) {
  constexpr int kFirstCapability = 8;
  int major = 0, minor = 0;
  return plugin.capability(index, &major, &minor) == nullptr && major >= kFirstCapability;
}

bool multiplies_bf16(at::Device device) {
  if (device.is_cpu()) {
    const MachineFacts machine = machine_facts();
    return machine.amx_bf16 || machine.avx512_bf16;
  }
  const cuda::CudaPlugin* plugin = plugin_of(device);
  return plugin != nullptr && detail::multiplies_bf16(*plugin, device_index(device));
}

DeviceFacts fixed_facts_of(at::Device device) {
  DeviceFacts facts;
  facts.device = name_of(device);
  if (device.is_cpu()) {
    add_host(facts);
  } else if (const cuda::CudaPlugin* plugin = plugin_of(device)) {
    add_plugin_facts(facts, *plugin, device_index(device));
  } else {
    facts.total_bytes = free_and_total(device).second;
  }
  return facts;
}

DeviceFacts facts_of(at::Device device) {
  DeviceFacts facts = fixed_facts_of(device);
  if (device.is_cpu()) {
    facts.free_bytes = available_memory().value_or(0);
    return facts;
  }
  if (const cuda::CudaPlugin* plugin = plugin_of(device)) {
    add_free_memory(facts, *plugin, device_index(device));
  } else {
    facts.free_bytes = free_and_total(device).first;
  }
  add_allocator_figures(facts, device);
  return facts;
}

std::vector<DeviceFacts> list_devices() {
  std::vector<DeviceFacts> all = {facts_of(at::kCPU)};
  for (int i = 0; i < load_device_plugin().devices; ++i) {
    all.push_back(facts_of(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(i))));
  }
  return all;
}

}  // namespace troika
