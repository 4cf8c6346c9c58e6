#include <troika/base/error.h>
#include <troika/optim/schedule.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace troika {
namespace {

double constant(const SchedulePosition&) {
  return 1;
}

double linear(const SchedulePosition& position) {
  return 1 - position.past / position.remaining;
}

double cosine(const SchedulePosition& position) {
  return (1 + std::cos(std::numbers::pi * (position.past / position.remaining))) / 2;
}

double warm_up_stable_decay(const SchedulePosition& position) {
  const double decay =
      std::min(position.remaining, std::max(1.0, std::round(0.2 * position.steps)));
  const double over = position.past - (position.remaining - decay);
  return over <= 0 ? 1 : 1 - std::sqrt(over / decay);
}

// The shapes that there are: a new one is a line here, and its function.
constexpr std::array kShapes = {
    LearningRateShape{"constant", constant, false}, LearningRateShape{"linear", linear},
    LearningRateShape{"cosine", cosine}, LearningRateShape{"wsd", warm_up_stable_decay}};

double warm_up(const OptimizerOptions& options, double factor, std::int64_t step) {
  const auto steps = static_cast<double>(options.warmup_steps);
  const auto now = static_cast<double>(step);
  const double peak = factor * options.lr;
  if (options.lr_base_batch_size == 0) return peak * now / steps;
  if (factor <= 1 || step == options.warmup_steps) return peak;
  return options.lr + (peak - options.lr) * (now - 1) / (steps - 1);
}

}  // namespace

std::span<const LearningRateShape> learning_rate_shapes() {
  return kShapes;
}

const LearningRateShape& learning_rate_shape(std::string_view name) {
  const auto found = std::ranges::find(kShapes, name, &LearningRateShape::name);
  check(found != kShapes.end(), "a learning-rate schedule that does not exist");
  return *found;
}

double learning_rate(const OptimizerOptions& options, std::int64_t steps,
                     std::int64_t global_batch_size, std::int64_t step) {
  check(step >= 1, "learning rate of a step before the first");
  const double factor =
      options.lr_base_batch_size > 0
          ? static_cast<double>(global_batch_size) / static_cast<double>(options.lr_base_batch_size)
          : 1.0;
  step = std::min(step, std::max<std::int64_t>(steps, 1));
  if (step <= options.warmup_steps) return warm_up(options, factor, step);
  const SchedulePosition position{static_cast<double>(step - options.warmup_steps),
                                  static_cast<double>(steps - options.warmup_steps),
                                  static_cast<double>(steps)};
  const double left = learning_rate_shape(options.schedule).height(position);
  return factor * (options.min_lr + (options.lr - options.min_lr) * left);
}

}  // namespace troika
