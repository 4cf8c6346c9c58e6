// Dynamic loss scaling for fp16 (Micikevicius et al. 2018, "Mixed precision training", section
// 3.2). The loss is multiplied by a power of two, so that small gradients survive fp16, and the
// optimiser divides by it, both exactly.
#pragma once

#include <cstdint>

namespace troika {

class LossScaler {
 public:
  static constexpr double kInitial = 65536;  // 2^16
  static constexpr double kMinimum = 1;
  static constexpr double kMaximum = 16777216;        // 2^24
  static constexpr std::int64_t kGrowthSteps = 2000;  // good steps in a row before it doubles

  enum class Verdict { kApply, kSkip };

  // All there is to remember.
  struct State {
    double scale = kInitial;
    std::int64_t good_steps = 0;
    friend bool operator==(const State&, const State&) = default;
  };

  LossScaler() = default;
  // Goes on from a state that was saved. Throws DataError unless the scale is a power of two in
  // [kMinimum, kMaximum] and the count is in [0, kGrowthSteps).
  explicit LossScaler(const State& state);

  [[nodiscard]] double scale() const { return state_.scale; }
  [[nodiscard]] const State& state() const { return state_; }

  // Judges step `step` by the norm of its gradients, still scaled. Not finite: the step is to be
  // skipped and the scale halves; throws NonFiniteError naming the step where it is at its minimum
  // already. Finite: the step is to be applied, and the scale doubles after kGrowthSteps of them in
  // a row, up to its maximum. All ranks must pass the same norm, so that their scales stay equal.
  [[nodiscard]] Verdict update(double gradient_norm, std::int64_t step);

 private:
  State state_;
};

}  // namespace troika
