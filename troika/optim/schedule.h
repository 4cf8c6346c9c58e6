// The learning rate of a step: a pure function of the recipe, so a resumed run needs no state.
#pragma once

#include <troika/optim/options.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace troika {

// The steps of a run behind its warm-up.
struct SchedulePosition {
  double past;       // steps done since then, this one among them
  double remaining;  // steps that there are since then
  double steps;      // of the whole run
};

// A shape that [optimizer] schedule can name. A new one is a function and a line of the table in
// schedule.cc.
struct LearningRateShape {
  std::string_view name;
  // Returns how much of the way from min_lr up to lr is left, in [0, 1].
  double (*height)(const SchedulePosition& position);
  // Ends at min_lr.
  bool falls = true;
};

// Returns every shape that there is.
[[nodiscard]] std::span<const LearningRateShape> learning_rate_shapes();
// Returns the shape of this name. Throws InternalError where there is none.
[[nodiscard]] const LearningRateShape& learning_rate_shape(std::string_view name);

// Returns the rate of step `step` of `steps`, from 1; steps beyond the last one keep its rate.
// Throws InternalError if `step` is below 1.
//
// Warm-up rises evenly over the first W = warmup_steps steps and reaches `lr` at step W; its first
// step has lr / W. After it, with x the part of the remaining steps that is over, so that the last
// step has x = 1 and the rate min_lr:
//   constant  lr
//   linear    min_lr + (lr - min_lr) (1 - x)
//   cosine    min_lr + (lr - min_lr) (1 + cos(pi x)) / 2
//   wsd       lr, then over the last fifth of all steps (of what warm-up leaves, if that is less)
//             min_lr + (lr - min_lr) (1 - sqrt(x)), x counted from where the decay starts: the
//             shape that Haegele et al. 2024 ("Scaling laws and compute-optimal training beyond
//             fixed training durations") found best
// A run that is shorter than its warm-up ends inside it.
//
// lr_base_batch_size > 0 applies the linear scaling rule of Goyal et al. 2017, section 2.1: every
// rate, min_lr too, is multiplied by k = global_batch_size / lr_base_batch_size. Warm-up is then
// their gradual one (section 2.2): it starts at the unscaled lr, at step 1, and reaches k lr at
// step W in even steps. Where k <= 1 there is nothing to warm up to, and the rate is k lr from the
// start.
[[nodiscard]] double learning_rate(const OptimizerOptions& options, std::int64_t steps,
                                   std::int64_t global_batch_size, std::int64_t step);

}  // namespace troika
