#include <troika/base/error.h>
#include <troika/optim/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace troika {
namespace {

// How much of the way from `lr` down to `min_lr` is left, in [0, 1], `step` being past the warm-up.
double height(const OptimizerOptions& options, std::int64_t steps, std::int64_t step) {
  const double past = static_cast<double>(step - options.warmup_steps);
  const double remaining = static_cast<double>(steps - options.warmup_steps);
  const double x = past / remaining;
  switch (options.schedule) {
    case LearningRateSchedule::kConstant:
      return 1;
    case LearningRateSchedule::kLinear:
      return 1 - x;
    case LearningRateSchedule::kCosine:
      return (1 + std::cos(std::numbers::pi * x)) / 2;
    case LearningRateSchedule::kWsd: {
      const double decay =
          std::min(remaining, std::max(1.0, std::round(0.2 * static_cast<double>(steps))));
      const double over = past - (remaining - decay);
      return over <= 0 ? 1 : 1 - std::sqrt(over / decay);
    }
  }
  throw InternalError("internal error: a schedule without an implementation");
}

double warm_up(const OptimizerOptions& options, double factor, std::int64_t step) {
  const auto steps = static_cast<double>(options.warmup_steps);
  const auto now = static_cast<double>(step);
  const double peak = factor * options.lr;
  if (options.lr_base_batch_size == 0) return peak * now / steps;
  if (factor <= 1 || step == options.warmup_steps) return peak;
  return options.lr + (peak - options.lr) * (now - 1) / (steps - 1);
}

}  // namespace

double learning_rate(const OptimizerOptions& options, std::int64_t steps,
                     std::int64_t global_batch_size, std::int64_t step) {
  check(step >= 1, "learning rate of a step before the first");
  const double factor =
      options.lr_base_batch_size > 0
          ? static_cast<double>(global_batch_size) / static_cast<double>(options.lr_base_batch_size)
          : 1.0;
  step = std::min(step, std::max<std::int64_t>(steps, 1));
  if (step <= options.warmup_steps) return warm_up(options, factor, step);
  const double left = height(options, steps, step);
  return factor * (options.min_lr + (options.lr - options.min_lr) * left);
}

}  // namespace troika
