// The memories that the ranks of a host fill: the host's own and, where ranks train on devices,
// those of the devices. Ranks that share a device share its memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/device/choose.h>
#include <troika/plan/memory_plan.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The memory of one device.
struct DeviceRoom {
  std::string name;               // "cuda:0"
  std::uint64_t total_bytes = 0;  // 0: not known, as of a device that is not here
  std::uint64_t free_bytes = 0;   // that ranks may take: all of it where it was not measured
};

// The memories of a host, and who fills which.
struct HostMemory {
  std::uint64_t bytes = 0;  // of the host; 0: not known
  // The devices that ranks train on: none where they train on the host.
  std::vector<DeviceRoom> devices = {};
  // The device that each rank of the host takes: an index of `devices`.
  std::vector<std::size_t> device_of = {};
  // True if tensors of devices go from rank to rank through staging buffers in the host's memory.
  bool is_staged = false;
  // The precision that "auto" stands for on these devices, or on the host where ranks train there.
  // A device that is not here counts as one with bf16.
  Precision auto_precision = Precision::kBFloat16;

  [[nodiscard]] TensorPlace tensor_place() const {
    return devices.empty() ? TensorPlace::kHost : TensorPlace::kDevice;
  }
};

// The bytes that ranks need in the memories of their host.
struct MemoryNeeds {
  std::int64_t host = 0;                   // processes included
  std::vector<std::int64_t> devices = {};  // as HostMemory::devices

  // Returns true if every memory that is known has as much.
  [[nodiscard]] bool fit(const HostMemory& memory) const;
  // Returns true if every memory is known, or one that is known is too small: fit() then says all.
  [[nodiscard]] bool can_be_judged(const HostMemory& memory) const;
};

// Returns the memories of this host, whose ranks choose devices by `word` (train.device) as
// choose_device() does; `place` says how many they are. Counts whole devices, which opens none.
// Throws UsageError where there are too few.
[[nodiscard]] HostMemory memory_of_this_host(std::string_view word, HostPosition place);

// Returns the memories of a host to be planned for, with so many ranks. A device has
// `device_bytes`, else the size of its like on this machine, or of the first one. Where this
// machine has none, the size is not known.
[[nodiscard]] HostMemory memory_of_planned_host(std::string_view word, int ranks_per_node,
                                                std::optional<std::uint64_t> device_bytes);

// Returns what is free of the device that this rank has taken, and that `ranks` ranks share; the
// host's memory is not known. Opens a GPU in this process (device/facts.h).
[[nodiscard]] HostMemory free_memory_of(at::Device device, int ranks);

// Returns the name of the device that this rank of a host takes: "cpu" where there are none.
[[nodiscard]] std::string device_name(const HostMemory& memory, int local_rank);

// Returns what ranks [first, first + count) need. Rank `first` is rank 0 of its host.
[[nodiscard]] MemoryNeeds needs_of_ranks(const std::vector<RankKind>& kinds, int first, int count,
                                         const HostMemory& memory);

// Returns the most that any host of the job needs of each of its memories, with `ranks_per_node`
// neighbouring ranks on each. All hosts are like `memory`.
[[nodiscard]] MemoryNeeds most_needs(const std::vector<RankKind>& kinds, int ranks,
                                     int ranks_per_node, const HostMemory& memory);

}  // namespace troika
