// Where ranks and launchers leave, in the job's store, what they see of the ranks of their host
// when an operation has failed, and how they are asked for it.
#pragma once

#include <troika/rendezvous/store.h>

#include <string>

namespace troika {

// Of a snapshot (observe/snapshot.h) of `rank`, behind the job's prefix.
[[nodiscard]] std::string snapshot_key(int rank);
// Set when the launcher of `node` is asked to leave a snapshot of each of its ranks.
[[nodiscard]] std::string snapshots_wanted_key(int node);

// Says to the ranks how many launchers answer. Each of them watches its snapshots_wanted_key().
void offer_snapshots(Store& job, int nodes);
// Asks all of them, if there are any; returns at once.
void ask_launchers_for_snapshots(Store& job);

}  // namespace troika
