// What this machine gives us: how many cores and how much memory we may use, counting affinity and
// the limits of control groups (containers, Slurm, Kubernetes), and what its processor can do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace troika {

struct MachineFacts {
  std::string host;
  std::string cpu_model;  // "" if the machine does not say
  int cores = 1;          // logical cores in the affinity mask
  int usable_cores = 1;   // of which the quota allows this many, rounded down, at least one
  std::uint64_t memory_bytes = 0;         // of the machine
  std::uint64_t usable_memory_bytes = 0;  // the same, or the control group's limit
  bool avx2 = false;
  bool avx512f = false;
  bool avx512_bf16 = false;
  bool amx_bf16 = false;
};

// The machine we run on. What the system does not state keeps its default.
[[nodiscard]] MachineFacts machine_facts();
// The same of the files below `root` (proc/meminfo, proc/cpuinfo, proc/self/cgroup, sys/fs/cgroup);
// affinity and host name are still this process's.
[[nodiscard]] MachineFacts machine_facts(const std::filesystem::path& root);

[[nodiscard]] int usable_cores();
// For each of so many ranks that share so many cores, unless OMP_NUM_THREADS says otherwise.
[[nodiscard]] int threads_of_rank(int cores, int ranks);
// What may still be taken of the memory: of the machine's, with what the kernel would give up for
// it and swap, and of the control group's limit. Nothing if the system does not state it.
[[nodiscard]] std::optional<std::uint64_t> available_memory(
    const std::filesystem::path& root = "/");
// The number of /dev/nvidia0, /dev/nvidia1, ...: what NVIDIA's driver shows.
[[nodiscard]] int count_gpu_devices();
// The name of this host, as the kernel has it.
[[nodiscard]] std::string host_name();

// The tightest limits on the way from our control group to the root, of either version.
struct CgroupLimits {
  std::optional<double> cores;  // CPU time per time
  std::optional<std::uint64_t> memory_bytes;
  // Of a limit on memory what is left; files that the kernel would drop for it count as left.
  std::optional<std::uint64_t> available_memory_bytes;
};
[[nodiscard]] CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

}  // namespace troika
