#include <troika/base/error.h>
#include <troika/optim/gradient_norm.h>
#include <troika/server/round_update.h>

#include <cmath>

namespace troika {

RoundUpdate round_update(std::int64_t step, double squares, double weight,
                         const RoundRules& rules) {
  const double mean = 1 / weight;
  RoundUpdate update;
  update.norm = std::sqrt(squares) * mean;
  if (std::isfinite(update.norm)) {
    update.scale = mean * clip_factor(update.norm, rules.grad_clip);
    return update;
  }
  update.skipped = "the gradient norm is not finite";
  if (rules.skips_nonfinite) return update;
  throw NonFiniteError(update.skipped + " at step " + std::to_string(step),
                       "lower optimizer.lr, lengthen optimizer.warmup_steps, or set "
                       "train.on_nonfinite = \"skip\"");
}

}  // namespace troika
