// The global norm of the arena's gradients, for clipping and for telling that a gradient is not
// finite, which needs no pass of its own.
#pragma once

#include <troika/optim/parameter_sums.h>
#include <troika/param/arena.h>

namespace troika {

// The 2-norm of all gradients of the model together, as they stand in the arenas after their
// reduction: sums, before any scale. Squares are added in double precision over fixed chunks of
// each parameter, and the parameters' sums in the order of their global names, so the bits depend
// neither on threads, nor on how units lie in memory, nor on the ranks among which ZeRO cuts them.
// A tied parameter counts once. Not finite if and only if a gradient is not (or squares beyond the
// range of double precision). Collective over the groups of `sums`. Throws InternalError naming a
// gradient that is unclaimed.
[[nodiscard]] double global_norm(const Arena& arena, const ParameterSums& sums);
// The same where a rank holds the whole model; the arena may be sharded.
[[nodiscard]] double global_norm(const Arena& arena);

// What gradients of `norm` are multiplied by so that their norm is at most `max_norm`:
// min(1, max_norm / (norm + 1e-6)), as PyTorch's clip_grad_norm_; 1 if `max_norm` is 0 (off).
// Throws InternalError unless `norm` is finite.
[[nodiscard]] double clip_factor(double norm, double max_norm);

}  // namespace troika
