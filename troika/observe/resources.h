// What this process uses of the machine: memory, processor time, page faults.
#pragma once

#include <troika/base/time.h>

#include <cstdint>

namespace troika {

// A reading; all but the two of memory count from the start of the process.
struct ResourceUse {
  Clock::time_point at;
  std::uint64_t memory_bytes = 0;       // resident now
  std::uint64_t peak_memory_bytes = 0;  // the most that was resident
  double cpu_seconds = 0;               // user and system, over all threads
  std::uint64_t minor_faults = 0;       // pages mapped without reading from disk
  std::uint64_t major_faults = 0;       // pages read from disk
};

// Reads the use of resources in a few microseconds. Thread-safe. Throws InternalError where Linux's
// /proc is missing.
[[nodiscard]] ResourceUse resource_use();

// Returns the share of `cores` that was busy for us between two readings: 1 means all of them, all
// the time.
[[nodiscard]] double cpu_utilisation(const ResourceUse& before, const ResourceUse& after,
                                     double cores);

}  // namespace troika
