#include <ATen/ATen.h>
#include <troika/server/worker_sync.h>

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
    : RemoteSync(arena), client_(std::move(options), masters().size(), arena.types().master) {}

std::optional<DealtSamples> WorkerSync::next_samples() {
  const std::optional<DealtSamples> dealt = client_.next_samples();
  if (dealt) take(client_.buffer());
  return dealt;
}

void WorkerSync::push(const RemoteUpdate& update) {
  masters().read_gradients({0, masters().size()}, client_.buffer());
  client_.push(update);
}

}  // namespace troika
