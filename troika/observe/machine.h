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
  std::string cpu_model;                  // "" if the machine does not say
  int cores = 1;                          // logical cores in the affinity mask
  int usable_cores = 1;                   // those the quota allows, rounded down, at least one
  std::uint64_t memory_bytes = 0;         // of the machine
  std::uint64_t usable_memory_bytes = 0;  // the same, or the control group's limit
  bool avx2 = false;
  bool avx512f = false;
  bool avx512_bf16 = false;
  bool amx_bf16 = false;
};

// Returns the facts of the machine we run on. What the system does not state keeps its default.
[[nodiscard]] MachineFacts machine_facts();
// Returns the facts that the files below `root` state (proc/meminfo, proc/cpuinfo,
// proc/self/cgroup, sys/fs/cgroup). Affinity and host name are still this process's.
[[nodiscard]] MachineFacts machine_facts(const std::filesystem::path& root);

[[nodiscard]] int usable_cores();
// Returns the threads of each of `ranks` ranks that share `cores` cores: at least one.
// OMP_NUM_THREADS takes precedence where it is set; callers see to that.
[[nodiscard]] int threads_of_rank(int cores, int ranks);
// Returns the memory that can still be taken, or nothing if the system does not state it. This is
// the smaller of two: what is left of the machine's, with swap and what the kernel would give up
// for it, and what is left of the control group's limit.
[[nodiscard]] std::optional<std::uint64_t> available_memory(
    const std::filesystem::path& root = "/");
// Returns the number of GPUs that NVIDIA's driver shows, as dev/nvidia0 below `root` and so on, and
// that CUDA_VISIBLE_DEVICES leaves. Loads nothing.
[[nodiscard]] int count_gpu_devices(const std::filesystem::path& root = "/");
// Returns the name of this host, as the kernel has it.
[[nodiscard]] std::string host_name();

// The tightest limits on the way from our control group to the root, of either version.
struct CgroupLimits {
  std::optional<double> cores;  // CPU time per time
  std::optional<std::uint64_t> memory_bytes;
  // The part of the memory limit that is left. Files that the kernel would drop for it count as
  // left.
  std::optional<std::uint64_t> available_memory_bytes;
};
[[nodiscard]] CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

}  // namespace troika
