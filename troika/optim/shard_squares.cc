#include <ATen/ATen.h>
#include <troika/ops/sums.h>
#include <troika/optim/chunks.h>
#include <troika/optim/shard_squares.h>

#include <algorithm>

namespace troika::detail {

at::Tensor sum_of_squares(const at::Tensor& values) {
  return ops::square_sums(values)[0];
}

at::Tensor counted_part(const Arena& arena, std::size_t shard, const at::Tensor& values) {
  const LocalShard& own = arena.trained_shards()[shard];
  const ParameterSpec& spec = arena.parameters()[own.parameter]->spec();
  const std::int64_t owned = spec.owned.value_or(spec.local_count());
  return values.narrow(0, 0, std::clamp<std::int64_t>(owned - own.begin, 0, own.count));
}

ShardSquares::ShardSquares(const Arena& arena, std::span<const at::Tensor> values) : arena_(arena) {
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i].defined()) continue;
    all.push_back(counted_part(arena, i, values[i]));
    shards_.push_back(i);
  }
  if (all.empty()) return;
  const at::Tensor sums = ops::square_sums(all);
  sums_ = host_memory_for(arena.device(), sums);
  sums_.copy_(sums, /*non_blocking=*/true);
  copied_ = DeviceEvent::record(arena.device());
}

std::vector<double> ShardSquares::by_chunk(const Deadline& deadline) const {
  copied_.wait(deadline, "the sums of squares of a step");
  std::vector<double> by_shard(arena_.trained_shards().size(), 0.0);
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    by_shard[shards_[i]] = sums_.const_data_ptr<double>()[i];
  }
  std::vector<double> by_chunk;
  for (const Chunk& chunk : chunks_of(arena_)) {
    const bool first = chunk.begin == arena_.trained_shards()[chunk.shard].begin;
    by_chunk.push_back(first ? by_shard[chunk.shard] : 0);
  }
  return by_chunk;
}

}  // namespace troika::detail
