#include <troika/base/error.h>
#include <troika/parallel/data_parallel/step_weight.h>

#include <array>
#include <cmath>

namespace troika::detail {

double StepWeight::factor_before_reduction(double own) const {
  if (normalization_ == Normalization::kAfterReduction) return own;
  std::array<double, 1> sum = {own};
  session_.reduce(sum, ReduceOp::kSum, "weight of the step");
  if (own == 0) return 0;
  const double factor = own * (session_.size() / sum[0]);
  return std::abs(factor - 1) < 1e-12 ? 1 : factor;
}

// Facts' weights are sums over ranks divided by their number, as gradients are.
double StepWeight::factor_after_reduction(const StepFacts& facts) {
  *value_ = 1;
  if (facts.present > 0 && facts.weight == 0) {
    throw UsageError("every rank said weigh(0): there is nothing to average",
                     "leave out a step for which no rank has a sample, on all ranks");
  }
  constexpr double kSame = 1e-6;  // above the rounding of fp32, below one rank in a million
  const bool is_one = !(facts.weight > 0) || std::abs(facts.weight - 1) <= kSame;
  if (normalization_ == Normalization::kBeforeReduction || is_one) return 1;
  return 1 / facts.weight;
}

}  // namespace troika::detail
