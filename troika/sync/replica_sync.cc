#include <troika/sync/replica_sync.h>

namespace troika {

void ReplicaSync::save(StateDict&) const {}

void ReplicaSync::load(const StateDict&) {}

}  // namespace troika
