#include <ATen/ATen.h>
#include <troika/device/device.h>
#include <troika/optim/chunks.h>
#include <troika/optim/shard_squares.h>

#include <algorithm>

namespace troika::detail {

std::vector<double> squares_of_shards(const Arena& arena, std::span<const at::Tensor> values) {
  std::vector<at::Tensor> sums;
  std::vector<std::size_t> shards;  // of `sums`
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i].defined()) continue;
    const LocalShard& shard = arena.local_shards()[i];
    const ParameterSpec& spec = arena.parameters()[shard.parameter]->spec();
    const std::int64_t owned = spec.owned.value_or(spec.local_count());
    const std::int64_t counted = std::clamp<std::int64_t>(owned - shard.begin, 0, shard.count);
    sums.push_back(values[i].narrow(0, 0, counted).to(at::kDouble).square().sum());
    shards.push_back(i);
  }
  std::vector<double> by_shard(values.size(), 0.0);
  if (!sums.empty()) {
    const at::Tensor read = to_host(at::stack(sums));
    for (std::size_t i = 0; i < shards.size(); ++i) {
      by_shard[shards[i]] = read.const_data_ptr<double>()[i];
    }
  }
  std::vector<double> by_chunk;
  for (const Chunk& chunk : chunks_of(arena)) {
    const bool first = chunk.begin == arena.local_shards()[chunk.shard].begin;
    by_chunk.push_back(first ? by_shard[chunk.shard] : 0);
  }
  return by_chunk;
}

}  // namespace troika::detail
