#include <troika/base/error.h>
#include <troika/sync/replica_sync.h>

namespace troika {

bool ReplicaSync::sum_on_device(bool) {
  return false;
}

DeviceSums ReplicaSync::queue_sums() {
  throw InternalError("internal error: sums on a device of a sync that makes none");
}

StepSums ReplicaSync::read_sums(std::span<const double>) const {
  throw InternalError("internal error: sums of a device of a sync that makes none");
}

void ReplicaSync::save(StateDict&) const {}

void ReplicaSync::add_places(StateDict&, const HasTensor&) const {}

void ReplicaSync::average(const at::Tensor&) const {}

void ReplicaSync::load(const StateDict&) {}

}  // namespace troika
