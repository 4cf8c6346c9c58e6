#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <troika/base/error.h>
#include <troika/optim/chunks.h>

#include <algorithm>

namespace troika {
namespace {

// Fewer chunks than this are not worth waking a thread for.
constexpr std::int64_t kChunksPerThread = 4;

}  // namespace

std::vector<Chunk> chunks_of(const Arena& arena) {
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < arena.trained_shards().size(); ++i) {
    const LocalShard& shard = arena.trained_shards()[i];
    const ParameterSpec& spec = arena.parameters()[shard.parameter]->spec();
    const std::int64_t owned = spec.owned.value_or(spec.local_count());
    const std::int64_t end = shard.begin + shard.count;
    for (std::int64_t begin = shard.begin; begin < end; begin += kChunkElements) {
      const std::int64_t count = std::min(kChunkElements, end - begin);
      const std::int64_t counted = std::clamp<std::int64_t>(owned - begin, 0, count);
      chunks.push_back({i, shard.parameter, begin, count, counted});
    }
  }
  return chunks;
}

void for_each_chunk(std::size_t count, const std::function<void(std::size_t)>& visit) {
  at::parallel_for(0, static_cast<std::int64_t>(count), kChunksPerThread,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) visit(static_cast<std::size_t>(i));
                   });
}

void require_gradients(const Arena& arena) {
  for (const auto& parameter : arena.parameters()) {
    if (parameter->claimed() || !parameter->is_trained()) continue;
    throw InternalError("internal error: no gradient for '" + parameter->spec().name + "'",
                        "claim_zeroed() the parameters that a step does not use");
  }
}

}  // namespace troika
