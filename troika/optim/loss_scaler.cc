#include <troika/base/error.h>
#include <troika/optim/loss_scaler.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace troika {
namespace {

bool is_power_of_two(double value) {
  int exponent = 0;
  return std::frexp(value, &exponent) == 0.5;
}

}  // namespace

LossScaler::LossScaler(const State& state) : state_(state) {
  const bool scale_fits =
      state.scale >= kMinimum && state.scale <= kMaximum && is_power_of_two(state.scale);
  const bool count_fits = state.good_steps >= 0 && state.good_steps < kGrowthSteps;
  if (scale_fits && count_fits) return;
  throw DataError("loss scaler: a saved scale of " + std::to_string(state.scale) + " after " +
                      std::to_string(state.good_steps) + " good steps is not possible",
                  "the file it comes from is damaged");
}

LossScaler::Verdict LossScaler::update(double gradient_norm, std::int64_t step) {
  if (std::isfinite(gradient_norm)) {
    if (++state_.good_steps == kGrowthSteps) {
      state_ = {std::min(2 * state_.scale, kMaximum), 0};
    }
    return Verdict::kApply;
  }
  if (state_.scale == kMinimum) {
    throw NonFiniteError(
        "step " + std::to_string(step) + ": gradients are not finite even at a loss scale of 1",
        "lower optimizer.lr, or set train.precision to bf16 or fp32");
  }
  state_ = {state_.scale / 2, 0};
  return Verdict::kSkip;
}

}  // namespace troika
