#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/optim/chunks.h>
#include <troika/optim/gradient_norm.h>
#include <troika/optim/shard_squares.h>
#include <troika/optim/square_sum.h>

#include <algorithm>
#include <cmath>

namespace troika {
namespace {

// The sum of squares of each chunk's gradients.
template <typename T>
std::vector<double> chunk_squares(const Arena& arena) {
  const std::vector<Chunk> chunks = chunks_of(arena);
  std::vector<double> squares(chunks.size());
  for_each_chunk(chunks.size(), [&](std::size_t i) {
    const Chunk& chunk = chunks[i];
    if (arena.parameters()[chunk.parameter]->spec().frozen) return;  // its square stays zero
    const LocalShard& shard = arena.local_shards()[chunk.shard];
    squares[i] =
        square_sum(shard.gradient.const_data_ptr<T>() + chunk.offset_in(shard), chunk.counted);
  });
  return squares;
}

std::vector<double> squares_by_chunk(const Arena& arena) {
  if (!arena.device().is_cpu()) {
    std::vector<at::Tensor> gradients;
    for (const LocalShard& shard : arena.local_shards()) {
      const bool frozen = arena.parameters()[shard.parameter]->spec().frozen;
      gradients.push_back(frozen ? at::Tensor() : shard.gradient);
    }
    return detail::squares_of_shards(arena, gradients);
  }
  return arena.types().master == at::kDouble ? chunk_squares<double>(arena)
                                             : chunk_squares<float>(arena);
}

}  // namespace

double global_norm(const Arena& arena, const ParameterSums& sums) {
  require_gradients(arena);
  return std::sqrt(sums.total(squares_by_chunk(arena), "gradient norm"));
}

double global_norm(const Arena& arena) {
  return global_norm(arena, ParameterSums(arena));
}

double clip_factor(double norm, double max_norm) {
  check(std::isfinite(norm), "clipping by a norm that is not finite");
  if (max_norm == 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace troika
