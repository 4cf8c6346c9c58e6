#include <ATen/ATen.h>
#include <troika/server/remote_sync.h>
#include <troika/server/server_shard.h>
#include <troika/server/worker_client.h>

#include <cmath>
#include <utility>

namespace troika {

at::Tensor RemoteSync::host_values(std::int64_t count) const {
  return at::empty({count}, at::TensorOptions(arena_.types().master));
}

void RemoteSync::take(const at::Tensor& values) {
  masters_.write({0, masters_.size()}, values);
  publish();
}

void RemoteSync::publish() {
  arena_.publish();
  inner_.refresh();
}

RemoteWorker::RemoteWorker(Arena& arena, const ServerJobOptions& job, AllReduceOptions inside)
    : RemoteSync(arena, std::move(inside)),
      local_steps_(job.local_steps),
      outer_lr_(job.outer_lr) {}

RemoteUpdate RemoteWorker::change_in(const at::Tensor& change, RemoteUpdate update) const {
  update.learning_rate = outer_lr_;
  if (!update.skipped.empty()) return update;
  change.mul_(update.weight);
  update.scale = update.mean = 1 / update.weight;
  update.norm = std::sqrt(squares_of(change)) / update.weight;
  if (!std::isfinite(update.norm)) update.skipped = "what local steps have changed is not finite";
  return update;
}

}  // namespace troika
