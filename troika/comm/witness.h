// Gathers what all members of a group are doing when an operation has failed. Those of this host
// are looked at directly, through their flight recorders, or as processes where they keep none;
// those of other hosts through the store, where whoever shares a host with them (another member, or
// the launcher) leaves what it sees.
#pragma once

#include <troika/base/time.h>
#include <troika/comm/members.h>
#include <troika/comm/reason.h>
#include <troika/observe/snapshot.h>
#include <troika/rendezvous/store.h>

#include <optional>
#include <vector>

namespace troika {

class Witness {
 public:
  // `job` has the job's own prefix; nothing where all members share a host. Connects to it only
  // when it is asked.
  explicit Witness(std::optional<Store> job) : job_(std::move(job)) {}

  // By member; nothing for those of whom nobody says anything within `patience`. Thread-safe.
  [[nodiscard]] std::vector<std::optional<RankSnapshot>> look(const Members& members,
                                                              Seconds patience) noexcept;

 private:
  void ask_other_hosts(const Members& members, std::vector<std::optional<RankSnapshot>>& snapshots,
                       Seconds patience);

  std::optional<Store> job_;
};

// Why a member of this host gave up, in whatever group that was: the error that it has left beside
// its flight recorder (left_error.h), if it has not lain there for longer than `recently`.
[[nodiscard]] std::optional<Reason> reason_left(const Members& members, int member,
                                                Seconds recently);

}  // namespace troika
