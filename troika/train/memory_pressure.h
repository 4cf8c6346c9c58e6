// Says when memory is so short that a process should not keep what it has freed.
#pragma once

#include <troika/base/time.h>

#include <filesystem>

namespace troika {

// Returns whether less than a tenth is left of the memory limit of this process's control groups,
// as the files below `root` say. Returns false where there is no limit, or none that can be read.
[[nodiscard]] bool is_memory_scarce(const std::filesystem::path& root = "/") noexcept;

// Reads the limits once a second at most, because a step may take less than the reading. Not
// thread-safe.
class MemoryPressure {
 public:
  // Returns what is_memory_scarce() has returned in this second.
  [[nodiscard]] bool is_high() noexcept;

 private:
  Clock::time_point next_ = Clock::time_point::min();
  bool is_high_ = false;
};

}  // namespace troika
