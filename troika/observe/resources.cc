#include <sys/resource.h>
#include <troika/base/error.h>
#include <troika/observe/resources.h>

#include <fstream>
#include <string>

namespace troika {
namespace {

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

ResourceUse resource_use() {
  ResourceUse use;
  use.at = Clock::now();
  // Not getrusage's ru_maxrss: a child starts with the peak of the parent that spawned it.
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    std::uint64_t kibibytes = 0;
    if (key == "VmHWM:" && status >> kibibytes) use.peak_memory_bytes = kibibytes * 1024;
    if (key == "VmRSS:" && status >> kibibytes) use.memory_bytes = kibibytes * 1024;
  }
  rusage usage{};
  check(::getrusage(RUSAGE_SELF, &usage) == 0, "getrusage failed");
  if (use.memory_bytes == 0) {  // there is no /proc
    use.memory_bytes = use.peak_memory_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  }
  use.cpu_seconds = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  use.minor_faults = static_cast<std::uint64_t>(usage.ru_minflt);
  use.major_faults = static_cast<std::uint64_t>(usage.ru_majflt);
  return use;
}

double cpu_utilisation(const ResourceUse& before, const ResourceUse& after, double cores) {
  const double available = Seconds(after.at - before.at).count() * cores;
  return available > 0 ? (after.cpu_seconds - before.cpu_seconds) / available : 0.0;
}

}  // namespace troika
