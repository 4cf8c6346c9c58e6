// What becomes of the summed gradients of a synchronous step.
#pragma once

#include <cstdint>
#include <string>

namespace troika {

struct RoundRules {
  double grad_clip = 0;
  bool skips_nonfinite = false;
};

struct RoundUpdate {
  double norm = 0;           // of the mean gradient, before clipping
  double scale = 0;          // makes the sum a mean, clipped
  std::string skipped = {};  // why there is no update; empty where there is
};

// `squares` is that of the sum of all gradients, and `weight` the weight of their targets, above 0.
// Throws NonFiniteError where the norm is not finite, unless such steps are skipped.
[[nodiscard]] RoundUpdate round_update(std::int64_t step, double squares, double weight,
                                       const RoundRules& rules);

}  // namespace troika
