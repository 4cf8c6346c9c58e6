// The global norm of the arena's gradients, for clipping and for telling that a gradient is not
// finite, which needs no pass of its own.
#pragma once

#include <troika/optim/parameter_sums.h>
#include <troika/optim/shard_squares.h>
#include <troika/param/arena.h>

#include <optional>

namespace troika {

// Returns the 2-norm of all gradients of the model together, as they stand in the arenas after
// their reduction: sums, before any scale. Squares are added in double precision over fixed chunks
// of each parameter, and the parameters' sums in the order of their global names. The bits
// therefore depend neither on threads, nor on how units lie in memory, nor on the ranks among which
// ZeRO cuts them. A tied parameter counts once. The norm is not finite if and only if a gradient is
// not (or squares are beyond the range of double precision). Collective over the groups of `sums`.
// Throws InternalError naming a gradient that is unclaimed.
[[nodiscard]] double global_norm(const Arena& arena, const ParameterSums& sums);
// Returns the same norm where a rank holds the whole model; the arena may be sharded.
[[nodiscard]] double global_norm(const Arena& arena);

// Queues global_norm() on the arena's device, and returns it as a number (0-dim) in fp64 there.
// Collective, where sums.on_device(). It is not finite in the same cases. Its last bits depend on
// the ranks among which ZeRO cuts parameters. Throws InternalError naming a gradient that is
// unclaimed.
[[nodiscard]] at::Tensor norm_on_device(const Arena& arena, const ParameterSums& sums);

// Computes global_norm() in two halves, so that a device adds up squares while the host goes on.
class GradientNorm {
 public:
  // Queues the sums of squares where the arena lies on a device; elsewhere wait() makes them. The
  // gradients must not change before wait(), and `arena` must outlive this. Throws as
  // global_norm().
  explicit GradientNorm(const Arena& arena);
  // Collective: waits, and returns the norm.
  [[nodiscard]] double wait(const ParameterSums& sums) const;

 private:
  const Arena& arena_;
  std::optional<detail::ShardSquares> squares_;
};

// Returns the factor for gradients of `norm` that makes their norm at most `max_norm`. It is min(1,
// max_norm / (norm + 1e-6)), as in PyTorch's clip_grad_norm_; 1 if `max_norm` is 0 (off). Throws
// InternalError unless `norm` is finite.
[[nodiscard]] double clip_factor(double norm, double max_norm);
// Returns the same for a number on a device, where a norm that is not finite has any factor.
[[nodiscard]] at::Tensor clip_factor(const at::Tensor& norm, double max_norm);

}  // namespace troika
