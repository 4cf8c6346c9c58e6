// Gathers what all members of a group are doing when an operation has failed. Those of this host
// are looked at directly, through their flight recorders, or as processes where they keep none;
// those of other hosts through the store, where whoever shares a host with them (another member, or
// the launcher) leaves what it sees.
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
  // `job` has the job's own prefix; nothing where all members share a host. Connects to it only
  // when it is asked.
  explicit SnapshotCollector(std::optional<Store> job) : job_(std::move(job)) {}

  // By member; nothing for those of whom nobody says anything within `timeout`. Thread-safe.
  [[nodiscard]] std::vector<std::optional<RankSnapshot>> collect(const Members& members,
                                                                 Seconds timeout) noexcept;

 private:
  void ask_other_hosts(const Members& members, std::vector<std::optional<RankSnapshot>>& snapshots,
                       Seconds timeout);

  std::optional<Store> job_;
};

// Why a member of this host aborted, in whatever group that was: the error that it has left beside
// its flight recorder (saved_error.h), if it has not lain there for longer than `recently`.
[[nodiscard]] std::optional<Failure> saved_reason(const Members& members, int member,
                                                  Seconds recently);

}  // namespace troika
