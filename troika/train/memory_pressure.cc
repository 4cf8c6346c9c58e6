#include <troika/observe/machine.h>
#include <troika/train/memory_pressure.h>

#include <exception>

namespace troika {

bool is_memory_scarce(const std::filesystem::path& root) noexcept {
  try {
    const CgroupLimits limits = cgroup_limits(root);
    return limits.memory_bytes && limits.available_memory_bytes &&
           *limits.available_memory_bytes < *limits.memory_bytes / 10;
  } catch (const std::exception&) {
    return false;
  }
}

bool MemoryPressure::is_high() noexcept {
  const Clock::time_point now = Clock::now();
  if (now >= next_) {
    next_ = now + std::chrono::seconds(1);
    is_high_ = is_memory_scarce();
  }
  return is_high_;
}

}  // namespace troika
