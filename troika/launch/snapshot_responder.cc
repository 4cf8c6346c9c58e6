#include <troika/base/error.h>
#include <troika/launch/snapshot_responder.h>
#include <troika/observe/snapshot.h>
#include <troika/rendezvous/snapshots.h>

namespace troika {

SnapshotResponder::SnapshotResponder(const Store& job, int node, int first_rank, int ranks,
                                     std::filesystem::path recorders)
    : answers_(job.clone()),
      watch_(
          job, snapshots_wanted_key(node),
          [this, first_rank, ranks, recorders = std::move(recorders)](const std::string&) {
            for (int rank = first_rank; rank < first_rank + ranks; ++rank) {
              const auto snapshot = take_snapshot(recorder_path(recorders, rank));
              if (!snapshot) continue;
              try {
                answers_.set(snapshot_key(rank), encode(*snapshot));
                // The store is gone, and with it whoever asked.
                // NOLINTNEXTLINE(bugprone-empty-catch)
              } catch (const Error&) {
              }
            }
          },
          [](const std::string&) {}) {}

}  // namespace troika
