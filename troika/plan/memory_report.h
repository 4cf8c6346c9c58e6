// What a dry run says: the predicted memory of each rank, and whether hosts and devices have it.
#pragma once

#include <troika/plan/host_memory.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troika {

// The ranks [first, first + count), which share a host.
struct HostRanks {
  int first = 0;
  int count = 1;
};

struct DryRun {
  Recipe recipe;  // resolved
  std::vector<RankKind> kinds;
  int ranks_per_node = 1;
  HostMemory memory;  // of each host
  MemoryNeeds needs;  // of the hosts whose ranks need the most

  // Returns true if every memory that is known is large enough.
  [[nodiscard]] bool fits() const { return needs.fit(memory); }
};

// Predicts the memory of a resolved `recipe`. Neighbouring ranks share a host, and all hosts are
// like `memory`. The caller sets the threads of such a rank (ScopedRankThreads). Throws UsageError.
[[nodiscard]] DryRun dry_run(const Recipe& recipe, int ranks_per_node, const HostMemory& memory);

// Returns a table with a line for each kind of rank.
[[nodiscard]] std::string to_text(const DryRun& run);
// Returns one line. `advice` says what to change if the job does not fit.
[[nodiscard]] std::string to_json(const DryRun& run, const std::string& advice);

// Returns ranks as text: "0-3, 8".
[[nodiscard]] std::string ranges_text(const std::vector<int>& ranks);
// Returns an amount as text: "2.5 GiB". A negative one counts as zero.
[[nodiscard]] std::string bytes_text(std::int64_t bytes);

}  // namespace troika
