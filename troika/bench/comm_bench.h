// Measures how fast a group is, operation by operation and size by size, the way nccl-tests does:
// what is timed is also checked.
#pragma once

#include <troika/base/time.h>
#include <troika/bench/operation.h>
#include <troika/comm/group.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troika {

struct CommTiming {
  std::string engine;  // as Group::engine_name(device) has it: "shm", "shm, staged"
  std::string operation;
  std::string device = "cpu";  // that rank 0's tensors lie on
  std::int64_t bytes = 0;      // of the larger of a rank's two tensors
  int ranks = 0;
  Seconds time{0};                 // of one operation: the median over the repeats
  Seconds fastest{0}, slowest{0};  // of the repeats
  int repeats = 0;
  int operations_per_repeat = 0;
  double algorithm_bandwidth = 0;  // bytes a second, and
  double bus_bandwidth = 0;        // as BenchOperationFacts says
};

struct CommBenchOptions {
  std::vector<BenchOperation> operations = {BenchOperation::kAllReduce};
  std::vector<std::int64_t> sizes;  // bytes
  BenchMemory memory = BenchMemory::kGroup;
  at::Device device = at::kCPU;  // that this rank's tensors lie on
  // The approximate time of the counted runs of each operation and size. A warm-up of a third of it
  // comes before.
  Seconds budget{0.5};
  Seconds timeout{60};  // of one operation
};

// Measures the operations. Collective: `options` are equal on all ranks but for the number of their
// device, as is the result. A repeat
// is a run of operations, one after the other, between a barrier and a check of what has come out;
// its time is the slowest rank's. Throws InternalError if a result is wrong, and as the group does.
[[nodiscard]] std::vector<CommTiming> bench_comm(const Group& group,
                                                 const CommBenchOptions& options);

// Reads bytes from "4,4K,64M" (powers of 1024), or "4:64M", which goes up by factors of 4. Throws
// UsageError naming what is no size, or no multiple of the 4 bytes of an element.
[[nodiscard]] std::vector<std::int64_t> parse_sizes(const std::string& text);

}  // namespace troika
