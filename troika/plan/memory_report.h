// What a dry run says: the predicted memory of each rank, and whether the hosts have it.
#pragma once

#include <troika/plan/memory_plan.h>

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
  std::uint64_t host_bytes = 0;  // of this machine; 0: not known
  // The bytes of the host whose ranks need the most, processes included.
  std::int64_t needed_bytes = 0;

  [[nodiscard]] bool fits() const {
    return host_bytes == 0 || needed_bytes <= static_cast<std::int64_t>(host_bytes);
  }
};

// Returns the bytes of the host whose ranks need the most, with `ranks_per_node` neighbouring ranks
// on each.
[[nodiscard]] std::int64_t max_host_bytes(const std::vector<RankKind>& kinds, int ranks,
                                          int ranks_per_node);

// Predicts the memory of a resolved `recipe`. Neighbouring ranks share a host, all like this
// machine. The caller sets the threads of such a rank (ScopedRankThreads). Throws UsageError.
[[nodiscard]] DryRun dry_run(const Recipe& recipe, int ranks_per_node, std::uint64_t host_bytes);

// Returns a table with a line for each kind of rank.
[[nodiscard]] std::string to_text(const DryRun& run);
// Returns one line. `advice` says what to change if the job does not fit.
[[nodiscard]] std::string to_json(const DryRun& run, const std::string& advice);

// Returns an amount as text: "2.5 GiB". A negative one counts as zero.
[[nodiscard]] std::string bytes_text(std::int64_t bytes);

}  // namespace troika
