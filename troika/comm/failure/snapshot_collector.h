// Collects what all members of a group are doing when an operation has failed. Those of this host
// are looked at directly, through their flight recorders, or as processes where they keep none. The
// store has those of other hosts: another member on their host, or the launcher there, publishes
// what it sees.
#pragma once

#include <troika/base/failure.h>
#include <troika/base/time.h>
#include <troika/comm/members.h>
#include <troika/observe/snapshot.h>
#include <troika/rendezvous/store.h>

#include <optional>
#include <vector>

namespace troika {

class SnapshotCollector {
 public:
  // `job` has the job's own prefix; it is absent where all members share a host. Only collect()
  // connects to it.
  explicit SnapshotCollector(std::optional<Store> job) : job_(std::move(job)) {}

  // Returns the snapshots by member; nothing for a member that no report covers within `timeout`.
  // Thread-safe.
  [[nodiscard]] std::vector<std::optional<RankSnapshot>> collect(const Members& members,
                                                                 Seconds timeout) noexcept;

 private:
  void ask_other_hosts(const Members& members, std::vector<std::optional<RankSnapshot>>& snapshots,
                       Seconds timeout);

  std::optional<Store> job_;
};

// Returns why a member of this host aborted, in any group. That is the error that it has left
// beside its flight recorder (saved_error.h), if not older than `recently`.
[[nodiscard]] std::optional<Failure> saved_reason(const Members& members, int member,
                                                  Seconds recently);

}  // namespace troika
