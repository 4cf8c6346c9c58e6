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

namespace troika {
namespace {

void add_host(DeviceFacts& facts) {
  const MachineFacts machine = machine_facts();
  facts.name = machine.cpu_model;
  facts.total_bytes = machine.usable_memory_bytes;
  facts.free_bytes = available_memory().value_or(0);
}

void add_plugin_facts(DeviceFacts& facts, const cuda::Plugin& plugin, int index) {
  cuda::DeviceAttributes attributes{};
  if (const char* error = plugin.describe(index, &attributes)) {
    throw UsageError(facts.device + " does not say what it is: " + error);
  }
  facts.name = attributes.name;
  facts.capability = std::to_string(attributes.capability_major) + "." +
                     std::to_string(attributes.capability_minor);
  facts.total_bytes = attributes.total_bytes;
  facts.free_bytes = attributes.free_bytes;
  facts.bandwidth = attributes.bandwidth;
  facts.pci_bus_id = attributes.pci_bus_id;
  add_location(facts);
}

std::uint64_t current(const c10::CachingAllocator::StatArray& statistic) {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, statistic[kAll].current));
}

// An allocator that counts nothing, or has not begun to, throws.
void add_allocator_figures(DeviceFacts& facts, at::Device device) {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || !allocator->initialized()) return;
  const c10::DeviceIndex index = device.has_index() ? device.index() : c10::DeviceIndex{0};
  try {
    const auto statistics = allocator->getDeviceStats(index);
    const std::uint64_t allocated = current(statistics.allocated_bytes);
    facts.allocator = {allocated, current(statistics.reserved_bytes) - allocated};
    if (facts.total_bytes == 0) {
      std::tie(facts.free_bytes, facts.total_bytes) = allocator->getMemoryInfo(index);
    }
  } catch (const c10::Error&) {  // then they stay unknown. NOLINT(bugprone-empty-catch)
  }
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

DeviceFacts facts_of(at::Device device) {
  DeviceFacts facts;
  facts.device = name_of(device);
  if (device.is_cpu()) {
    add_host(facts);
    return facts;
  }
  const cuda::Plugin* plugin = device.is_cuda() ? detail::loaded_plugin().functions : nullptr;
  if (plugin != nullptr) add_plugin_facts(facts, *plugin, device.has_index() ? device.index() : 0);
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
