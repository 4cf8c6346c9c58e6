#include <ATen/ATen.h>
#include <troika/server/worker_sync.h>

#include <troika/server/server_shard.h>

#include <cmath>
#include <utility>

namespace troika {

at::Tensor RemoteSync::host_values(std::int64_t count) const {
  return at::empty({count}, at::TensorOptions(arena_.types().master));
}

void RemoteSync::take(const at::Tensor& values) {
  masters_.write({0, masters_.size()}, values);
  arena_.publish();
  inner_.refresh();
}

WorkerSync::WorkerSync(Arena& arena, WorkerOptions options)
    : RemoteSync(arena),
      local_steps_(options.job.local_steps),
      outer_lr_(options.job.outer_lr),
      client_(std::move(options), masters().size(), arena.types().master) {}

std::optional<DealtSamples> WorkerSync::next_samples() {
  const std::optional<DealtSamples> dealt = client_.next_samples();
  if (dealt) take(client_.buffer());
  return dealt;
}

void WorkerSync::push(const RemoteUpdate& update) {
  if (local_steps_ > 0) return push_change(update);
  masters().read_gradients({0, masters().size()}, client_.buffer());
  client_.push(update);
}

// The buffer has what was pulled. What has changed since is as much of a gradient as the targets
// that it was made of.
void WorkerSync::push_change(RemoteUpdate update) {
  update.learning_rate = outer_lr_;
  if (update.skipped.empty()) {
    const at::Tensor now = host_values(masters().size());
    masters().read({0, masters().size()}, now);
    client_.buffer().sub_(now).mul_(update.weight);
    update.scale = update.mean = 1 / update.weight;
    update.norm = std::sqrt(squares_of(client_.buffer())) / update.weight;
    if (!std::isfinite(update.norm)) update.skipped = "what local steps have changed is not finite";
  }
  client_.push(update);
}

}  // namespace troika
