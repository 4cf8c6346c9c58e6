#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/ops/sums.h>
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
    const LocalShard& shard = arena.trained_shards()[chunk.shard];
    squares[i] =
        square_sum(shard.gradient.const_data_ptr<T>() + chunk.offset_in(shard), chunk.counted);
  });
  return squares;
}

}  // namespace

GradientNorm::GradientNorm(const Arena& arena) : arena_(arena) {
  require_gradients(arena);
  if (arena.device().is_cpu()) return;
  std::vector<at::Tensor> gradients;
  for (const LocalShard& shard : arena.trained_shards()) gradients.push_back(shard.gradient);
  squares_.emplace(arena, gradients);
}

double GradientNorm::wait(const ParameterSums& sums) const {
  const bool wide = arena_.types().master == at::kDouble;
  const std::vector<double> squares = squares_ ? squares_->by_chunk(sums.deadline())
                                      : wide   ? chunk_squares<double>(arena_)
                                               : chunk_squares<float>(arena_);
  return std::sqrt(sums.total(squares, "gradient norm"));
}

double global_norm(const Arena& arena, const ParameterSums& sums) {
  return GradientNorm(arena).wait(sums);
}

double global_norm(const Arena& arena) {
  return global_norm(arena, ParameterSums(arena));
}

at::Tensor norm_on_device(const Arena& arena, const ParameterSums& sums) {
  require_gradients(arena);
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < arena.trained_shards().size(); ++i) {
    const LocalShard& shard = arena.trained_shards()[i];
    if (!sums.counts(shard.parameter)) continue;
    gradients.push_back(detail::counted_part(arena, i, shard.gradient));
  }
  const at::Tensor own = gradients.empty()
                             ? at::zeros({}, at::device(arena.device()).dtype(at::kDouble))
                             : ops::square_sums(gradients).sum();
  return sums.total_on_device(own, "gradient norm").sqrt();
}

double clip_factor(double norm, double max_norm) {
  check(std::isfinite(norm), "clipping by a norm that is not finite");
  if (max_norm == 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

at::Tensor clip_factor(const at::Tensor& norm, double max_norm) {
  if (max_norm == 0) return at::ones_like(norm);
  return (max_norm / (norm + 1e-6)).clamp_max_(1.0);
}

}  // namespace troika
