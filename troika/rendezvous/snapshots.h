// The keys under which ranks and launchers leave, in the job's store, snapshots of the ranks of
// their host when an operation has failed. And the keys by which they are asked for them.
#pragma once

#include <troika/rendezvous/store.h>

#include <string>

namespace troika {

// Returns the key of a snapshot (observe/snapshot.h) of `rank`, behind the job's prefix.
[[nodiscard]] std::string snapshot_key(int rank);
// Returns the key that is set to ask the launcher of `node` for a snapshot of each of its ranks.
[[nodiscard]] std::string snapshots_wanted_key(int node);

// Announces to the ranks how many launchers answer. Each of them watches its
// snapshots_wanted_key().
void offer_snapshots(Store& job, int nodes);
// Asks all launchers that answer, if there are any; returns at once.
void ask_launchers_for_snapshots(Store& job);

}  // namespace troika
