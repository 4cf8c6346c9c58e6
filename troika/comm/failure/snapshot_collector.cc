#include <troika/base/error.h>
#include <troika/comm/failure/snapshot_collector.h>
#include <troika/observe/saved_error.h>
#include <troika/rendezvous/snapshots.h>

#include <exception>

namespace troika {
namespace {

// Of a member on this host.
std::optional<RankSnapshot> take(const Members& members, std::size_t i) {
  if (!members.recorders.empty()) {
    auto snapshot = take_snapshot(recorder_path(members.recorders, members.ranks[i]));
    if (snapshot) return snapshot;
  }
  if (i >= members.pids.size()) return std::nullopt;
  return look_at_process(members.ranks[i], members.pids[i]);
}

}  // namespace

std::vector<std::optional<RankSnapshot>> SnapshotCollector::collect(const Members& members,
                                                                    Seconds timeout) noexcept {
  std::vector<std::optional<RankSnapshot>> snapshots(members.ranks.size());
  try {
    bool alone = true;
    for (int member = 0; member < members.size(); ++member) {
      if (!members.on_this_host(member)) {
        alone = false;
        continue;
      }
      const auto i = static_cast<std::size_t>(member);
      snapshots[i] = take(members, i);
    }
    if (job_ && !alone && !members.recorders.empty()) ask_other_hosts(members, snapshots, timeout);
    // What is known by now is better than nothing. NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
  }
  return snapshots;
}

void SnapshotCollector::ask_other_hosts(const Members& members,
                                        std::vector<std::optional<RankSnapshot>>& snapshots,
                                        Seconds timeout) {
  const Deadline deadline = Deadline::in(timeout);
  // Whoever holds the other connection may wait in it; and the store may be gone.
  Store job = job_->clone(timeout);
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < snapshots.size(); ++i) {
    if (snapshots[i]) {
      job.set(snapshot_key(members.ranks[i]), encode(*snapshots[i]));
    } else {
      others.push_back(i);
    }
  }
  if (others.empty()) return;
  ask_launchers_for_snapshots(job);
  for (const std::size_t i : others) {
    const std::string key = snapshot_key(members.ranks[i]);
    if (!job.wait({key}, deadline)) continue;
    try {
      snapshots[i] = decode_snapshot(job.get_all({key}).front());
      // From another version, or torn: as if nobody had said anything.
      // NOLINTNEXTLINE(bugprone-empty-catch)
    } catch (const DataError&) {
    }
  }
}

std::optional<Failure> saved_reason(const Members& members, int member, Seconds recently) {
  if (members.recorders.empty() || !members.on_this_host(member)) return std::nullopt;
  const auto error =
      read_saved_error(members.recorders, members.ranks[static_cast<std::size_t>(member)]);
  if (!error || error->age > recently) return std::nullopt;
  return error->failure;
}

}  // namespace troika
