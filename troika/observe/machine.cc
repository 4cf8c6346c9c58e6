#include <sched.h>
#include <sys/sysinfo.h>
#include <troika/observe/machine.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

namespace troika {
namespace {

// The mask grows until the kernel's fits: a machine may have more than 1,024 cores.
int cores_in_affinity_mask() {
  for (int size = 1024; size <= 1 << 20; size *= 4) {
    cpu_set_t* const mask = CPU_ALLOC(static_cast<std::size_t>(size));
    if (mask == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(size));
    const bool known = ::sched_getaffinity(0, bytes, mask) == 0;
    const int count = known ? CPU_COUNT_S(bytes, mask) : 0;
    CPU_FREE(mask);
    if (known) return std::max(1, count);
  }
  return 1;
}

// Of proc/meminfo, such as "MemTotal:", in bytes.
std::optional<std::uint64_t> memory_stated(const std::filesystem::path& root,
                                           std::string_view wanted) {
  std::ifstream file(root / "proc/meminfo");
  for (std::string key; file >> key;) {
    std::uint64_t kibibytes = 0;
    if (key == wanted && file >> kibibytes) return kibibytes * 1024;
  }
  return std::nullopt;
}

// Without /proc.
std::uint64_t memory_of_kernel() {
  struct sysinfo facts {};
  return ::sysinfo(&facts) == 0 ? std::uint64_t{facts.totalram} * facts.mem_unit : 0;
}

void read_cpu(const std::filesystem::path& root, MachineFacts& facts) {
  std::ifstream file(root / "proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {  // the first core's part
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(std::min(line.size(), colon + 2));
    if (line.starts_with("model name")) facts.cpu_model = value;
    if (!line.starts_with("flags")) continue;
    std::istringstream flags(value);
    for (std::string flag; flags >> flag;) {
      facts.avx2 |= flag == "avx2";
      facts.avx512f |= flag == "avx512f";
      facts.avx512_bf16 |= flag == "avx512_bf16";
      facts.amx_bf16 |= flag == "amx_bf16";
    }
  }
}

// How many devices a list names, up to the first word that CUDA takes for none.
int devices_named(std::string_view list) {
  int count = 0;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    if (end == at || list[at] == '-') break;
    ++count;
    at = end + 1;
  }
  return count;
}

}  // namespace

MachineFacts machine_facts(const std::filesystem::path& root) {
  MachineFacts facts;
  facts.host = host_name();
  facts.cores = cores_in_affinity_mask();
  facts.memory_bytes = memory_stated(root, "MemTotal:").value_or(memory_of_kernel());
  read_cpu(root, facts);
  const CgroupLimits limits = cgroup_limits(root);
  const double quota = std::floor(limits.cores.value_or(facts.cores));
  facts.usable_cores = static_cast<int>(std::clamp<double>(quota, 1, facts.cores));
  facts.usable_memory_bytes =
      std::min(facts.memory_bytes, limits.memory_bytes.value_or(facts.memory_bytes));
  return facts;
}

MachineFacts machine_facts() {
  return machine_facts("/");
}

int usable_cores() {
  return machine_facts().usable_cores;
}

int threads_of_rank(int cores, int ranks) {
  return std::max(1, cores / ranks);
}

std::optional<std::uint64_t> available_memory(const std::filesystem::path& root) {
  const auto machine = memory_stated(root, "MemAvailable:");
  const auto group = cgroup_limits(root).available_memory_bytes;
  if (!machine) return group;
  const std::uint64_t with_swap = *machine + memory_stated(root, "SwapFree:").value_or(0);
  return group ? std::min(with_swap, *group) : with_swap;
}

int count_gpu_devices(const std::filesystem::path& root) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root / "dev", error)) {
    const std::string name = entry.path().filename();
    const bool numbered = name.starts_with("nvidia") && name.size() > 6 &&
                          name.find_first_not_of("0123456789", 6) == std::string::npos;
    if (numbered) ++count;
  }
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? count : std::min(count, devices_named(visible));
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

}  // namespace troika
