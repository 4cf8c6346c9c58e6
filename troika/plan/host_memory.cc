#include <ATen/ATen.h>
#include <troika/comm/engines.h>
#include <troika/device/device.h>
#include <troika/device/facts.h>
#include <troika/observe/machine.h>
#include <troika/plan/host_memory.h>
#include <troika/train/precision.h>

#include <algorithm>
#include <set>

namespace troika {
namespace {

// "auto" with a size of devices stands for GPUs, wherever they are.
at::Device planned_device(std::string_view word, int ranks,
                          std::optional<std::uint64_t> device_bytes) {
  if (word == "auto" && device_bytes) return at::kCUDA;
  if (word == "auto") return choose_device(word, {0, ranks}, "train.device");
  return at::Device(std::string(word));
}

bool is_here(at::Device device) {
  return (device.has_index() ? device.index() : 0) < device_count(device.type());
}

DeviceRoom room_of(at::Device device) {
  const DeviceFacts facts = fixed_facts_of(device);
  return {facts.device, facts.total_bytes, facts.total_bytes};
}

// Where ranks share a device no engine of devices connects them.
bool goes_through_host(const HostMemory& memory, at::DeviceType type) {
  const std::set<std::size_t> taken(memory.device_of.begin(), memory.device_of.end());
  if (taken.size() < memory.device_of.size()) return true;
  return std::ranges::none_of(list_engines(), [&](const EngineFacts& engine) {
    return engine.traits.memory == type && engine.usable;
  });
}

MemoryNeeds no_needs(const HostMemory& memory) {
  return {0, std::vector<std::int64_t>(memory.devices.size())};
}

void add_rank(MemoryNeeds& needs, const MemoryPlan& plan, const HostMemory& memory,
              int local_rank) {
  needs.host += plan.host_bytes(memory.is_staged) + kProcessBytes;
  if (memory.devices.empty()) return;
  needs.devices[memory.device_of[static_cast<std::size_t>(local_rank)]] += plan.peak();
}

// Devices to be planned for, each as large as its like here, or as the first one.
class PlannedDevices {
 public:
  PlannedDevices(at::DeviceType type, std::optional<std::uint64_t> bytes) : type_(type) {
    if (bytes) given_ = {"", *bytes, *bytes};
    for (int i = 0; !bytes && i < device_count(type); ++i) {
      here_.push_back(room_of(at::Device(type, static_cast<c10::DeviceIndex>(i))));
    }
  }

  [[nodiscard]] DeviceRoom room(int index) const {
    const auto place = static_cast<std::size_t>(index);
    DeviceRoom room = given_;
    if (!here_.empty()) room = here_[place < here_.size() ? place : 0];
    room.name =
        std::string(c10::DeviceTypeName(type_, /*lower_case=*/true)) + ":" + std::to_string(index);
    return room;
  }

 private:
  at::DeviceType type_;
  DeviceRoom given_;
  std::vector<DeviceRoom> here_;
};

}  // namespace

HostMemory memory_of_this_host(std::string_view word, HostPosition place) {
  HostMemory memory{.bytes = machine_facts().usable_memory_bytes};
  std::vector<at::Device> devices;
  for (place.rank = 0; place.rank < place.size; ++place.rank) {
    const at::Device device = choose_device(word, place, "train.device");
    if (place.rank == 0) memory.auto_precision = resolve_precision(Precision::kAuto, device);
    if (device.is_cpu()) return memory;
    auto found = std::ranges::find(devices, device);
    if (place.devices_are_own) found = devices.end();  // another one, though of the same name
    memory.device_of.push_back(static_cast<std::size_t>(found - devices.begin()));
    if (found != devices.end()) continue;
    devices.push_back(device);
    memory.devices.push_back(room_of(device));
  }
  memory.is_staged = goes_through_host(memory, devices.front().type());
  return memory;
}

HostMemory memory_of_planned_host(std::string_view word, int ranks_per_node,
                                  std::optional<std::uint64_t> device_bytes) {
  HostMemory memory{.bytes = machine_facts().usable_memory_bytes};
  const at::Device asked = planned_device(word, ranks_per_node, device_bytes);
  if (is_here(asked)) memory.auto_precision = resolve_precision(Precision::kAuto, asked);
  if (asked.is_cpu()) return memory;
  const PlannedDevices planned(asked.type(), device_bytes);
  if (word != "auto" && asked.has_index()) {  // all share it
    memory.devices.push_back(planned.room(asked.index()));
    memory.device_of.assign(static_cast<std::size_t>(ranks_per_node), 0);
  } else {
    for (int rank = 0; rank < ranks_per_node; ++rank) {
      memory.devices.push_back(planned.room(rank));
      memory.device_of.push_back(static_cast<std::size_t>(rank));
    }
  }
  memory.is_staged = goes_through_host(memory, asked.type());
  return memory;
}

HostMemory free_memory_of(at::Device device, int ranks) {
  const DeviceFacts facts = facts_of(device);
  HostMemory memory;
  memory.auto_precision = resolve_precision(Precision::kAuto, device);
  memory.devices = {{facts.device, facts.total_bytes, facts.free_bytes}};
  memory.device_of.assign(static_cast<std::size_t>(ranks), 0);
  return memory;
}

std::string device_name(const HostMemory& memory, int local_rank) {
  if (memory.devices.empty()) return "cpu";
  return memory.devices[memory.device_of[static_cast<std::size_t>(local_rank)]].name;
}

bool MemoryNeeds::fit(const HostMemory& memory) const {
  const auto fits = [](std::int64_t needed, std::uint64_t bytes) {
    return bytes == 0 || needed <= static_cast<std::int64_t>(bytes);
  };
  if (!fits(host, memory.bytes)) return false;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const DeviceRoom& room = memory.devices[i];
    if (room.total_bytes > 0 && devices[i] > static_cast<std::int64_t>(room.free_bytes)) {
      return false;
    }
  }
  return true;
}

bool MemoryNeeds::can_be_judged(const HostMemory& memory) const {
  const auto is_known = [](const DeviceRoom& room) { return room.total_bytes > 0; };
  return !fit(memory) || (memory.bytes > 0 && std::ranges::all_of(memory.devices, is_known));
}

MemoryNeeds needs_of_ranks(const std::vector<RankKind>& kinds, int first, int count,
                           const HostMemory& memory) {
  MemoryNeeds needs = no_needs(memory);
  for (const RankKind& kind : kinds) {
    const auto begin = std::ranges::lower_bound(kind.ranks, first);
    const auto end = std::ranges::lower_bound(kind.ranks, first + count);
    for (auto rank = begin; rank != end; ++rank) add_rank(needs, kind.plan, memory, *rank - first);
  }
  return needs;
}

MemoryNeeds most_needs(const std::vector<RankKind>& kinds, int ranks, int ranks_per_node,
                       const HostMemory& memory) {
  std::vector<MemoryNeeds> hosts(static_cast<std::size_t>((ranks - 1) / ranks_per_node + 1),
                                 no_needs(memory));
  for (const RankKind& kind : kinds) {
    for (const int rank : kind.ranks) {
      const auto host = static_cast<std::size_t>(rank / ranks_per_node);
      add_rank(hosts[host], kind.plan, memory, rank % ranks_per_node);
    }
  }
  MemoryNeeds most = no_needs(memory);
  for (const MemoryNeeds& needs : hosts) {
    most.host = std::max(most.host, needs.host);
    std::ranges::transform(
        most.devices, needs.devices, most.devices.begin(),
        [](std::int64_t one, std::int64_t other) { return std::max(one, other); });
  }
  return most;
}

}  // namespace troika
