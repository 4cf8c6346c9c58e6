#include <troika/base/error.h>
#include <troika/optim/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace troika {
namespace {

// How much of the way from `lr` down to `min_lr` is left, in [0, 1], `step` being past the warm-up.
double height(const OptimizerRecipe& optimizer, std::int64_t steps, std::int64_t step) {
  const double past = static_cast<double>(step - optimizer.warmup_steps);
  const double remaining = static_cast<double>(steps - optimizer.warmup_steps);
  const double x = past / remaining;
  switch (optimizer.schedule) {
    case ScheduleKind::kConstant:
      return 1;
    case ScheduleKind::kLinear:
      return 1 - x;
    case ScheduleKind::kCosine:
      return (1 + std::cos(std::numbers::pi * x)) / 2;
    case ScheduleKind::kWsd: {
      const double decay =
          std::min(remaining, std::max(1.0, std::round(0.2 * static_cast<double>(steps))));
      const double over = past - (remaining - decay);
      return over <= 0 ? 1 : 1 - std::sqrt(over / decay);
    }
  }
  throw InternalError("internal error: a schedule without an implementation");
}

double warm_up(const OptimizerRecipe& optimizer, double factor, std::int64_t step) {
  const auto steps = static_cast<double>(optimizer.warmup_steps);
  const auto now = static_cast<double>(step);
  const double peak = factor * optimizer.lr;
  if (optimizer.lr_base_batch_size == 0) return peak * now / steps;
  if (factor <= 1 || step == optimizer.warmup_steps) return peak;
  return optimizer.lr + (peak - optimizer.lr) * (now - 1) / (steps - 1);
}

}  // namespace

double learning_rate(const OptimizerRecipe& optimizer, const TrainRecipe& train,
                     std::int64_t step) {
  check(step >= 1, "learning rate of a step before the first");
  const double factor = optimizer.lr_base_batch_size > 0
                            ? static_cast<double>(train.global_batch_size) /
                                  static_cast<double>(optimizer.lr_base_batch_size)
                            : 1.0;
  step = std::min(step, std::max<std::int64_t>(train.steps, 1));
  if (step <= optimizer.warmup_steps) return warm_up(optimizer, factor, step);
  const double left = height(optimizer, train.steps, step);
  return factor * (optimizer.min_lr + (optimizer.lr - optimizer.min_lr) * left);
}

}  // namespace troika
