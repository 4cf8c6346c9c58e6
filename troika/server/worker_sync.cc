#include <ATen/ATen.h>
#include <troika/server/flat_layout.h>
#include <troika/server/worker_sync.h>

#include <utility>

namespace troika {

WorkerSync::WorkerSync(Arena& arena, WorkerOptions options)
    : RemoteWorker(arena, options.job),
      client_(std::move(options), masters().size(), arena.types().master) {
  if (has_frozen(arena)) take_frozen(arena, client_.layout(), client_.frozen_values());
}

std::optional<DealtSamples> WorkerSync::next_samples() {
  const std::optional<DealtSamples> dealt = client_.next_samples();
  if (dealt) take(client_.buffer());
  return dealt;
}

void WorkerSync::push(const RemoteUpdate& update) {
  if (local_steps() == 0) {
    masters().read_gradients({0, masters().size()}, client_.buffer());
    client_.buffer().mul_(update.unscale);
    return client_.push(update);
  }
  const at::Tensor values = host_values(masters().size());
  masters().read({0, masters().size()}, values);
  client_.push(change_in(client_.buffer().sub_(values), update));
}

}  // namespace troika
