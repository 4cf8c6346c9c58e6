// The loss of some targets, not yet divided.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troika {

// The sums of losses and weights. A step divides the sum of all ranks' sums by that of their
// weights. A target weighs 1, or the weight of its class, or 0 where it does not count. Both are
// numbers (0-dim) in fp64, on the model's device until the step reads them; undefined ones are
// zero.
struct LossTerms {
  at::Tensor sum;
  at::Tensor weight;

  // Makes terms in host memory.
  [[nodiscard]] static LossTerms of(double sum, double weight);
  // Sets a weight that is undefined: each of `targets` targets weighs 1.
  void weigh_equally(std::int64_t targets);
  // Adds the terms of another part.
  void add(const LossTerms& part);
  // Read the numbers, and wait for them.
  [[nodiscard]] double read_sum() const;
  [[nodiscard]] double read_weight() const;
};

}  // namespace troika
