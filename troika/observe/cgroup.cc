// Reads the limits of this process's control groups, which machine.h counts with.
#include <troika/base/cgroup_folders.h>
#include <troika/observe/machine.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string_view>
#include <vector>

namespace troika {
namespace {

using Path = std::filesystem::path;

// The first words of a file; "" for those that are missing.
std::vector<std::string> words_of(const Path& path, std::size_t count) {
  std::ifstream file(path);
  std::vector<std::string> words(count);
  for (std::string& word : words) file >> word;
  return words;
}

// A number greater than zero; "max", "-1" and other words are none.
std::optional<double> positive(const std::string& word) {
  std::istringstream text(word);
  double value = 0;
  if (!(text >> value) || !(value > 0)) return std::nullopt;
  return value;
}

template <typename T>
void tighten(std::optional<T>& limit, std::optional<double> value) {
  // 2^62: version 1 writes "no limit" as the greatest number of pages.
  if (!value || *value >= 0x1.0p62) return;
  limit = limit ? std::min(*limit, static_cast<T>(*value)) : static_cast<T>(*value);
}

void tighten_cores(CgroupLimits& limits, const std::string& quota, const std::string& period) {
  const std::optional<double> time = positive(quota), per = positive(period);
  if (time && per) tighten(limits.cores, *time / *per);
}

// A number of memory.stat; 0 if it is missing.
double statistic(const Path& folder, std::string_view wanted) {
  std::ifstream file(folder / "memory.stat");
  std::string key;
  for (double value = 0; file >> key >> value;) {
    if (key == wanted) return value;
  }
  return 0;
}

// Files named as in `folder`; `dropped` are the statistics of what the kernel gives up for others.
void tighten_memory(CgroupLimits& limits, const Path& folder, const char* limit, const char* usage,
                    std::initializer_list<std::string_view> dropped) {
  const std::optional<double> most = positive(words_of(folder / limit, 1)[0]);
  tighten(limits.memory_bytes, most);
  if (!most) return;
  double kept = positive(words_of(folder / usage, 1)[0]).value_or(0);
  for (const std::string_view name : dropped) kept -= statistic(folder, name);
  tighten(limits.available_memory_bytes, std::max(0.0, *most - std::max(0.0, kept)));
}

void read_version_2(const Path& folder, CgroupLimits& limits) {
  const std::vector<std::string> quota = words_of(folder / "cpu.max", 2);
  tighten_cores(limits, quota[0], quota[1]);
  tighten_memory(limits, folder, "memory.max", "memory.current",
                 {"inactive_file", "active_file", "slab_reclaimable"});
}

void read_version_1(const Path& folder, CgroupLimits& limits) {
  tighten_cores(limits, words_of(folder / "cpu.cfs_quota_us", 1)[0],
                words_of(folder / "cpu.cfs_period_us", 1)[0]);
  tighten_memory(limits, folder, "memory.limit_in_bytes", "memory.usage_in_bytes",
                 {"total_inactive_file", "total_active_file"});
}

}  // namespace

CgroupLimits cgroup_limits(const std::filesystem::path& root) {
  CgroupLimits limits;
  visit_cgroup_folders(root, [&](const Path& folder, std::string_view controller) {
    if (controller.empty()) read_version_2(folder, limits);
    if (controller == "cpu" || controller == "memory") read_version_1(folder, limits);
  });
  return limits;
}

}  // namespace troika
