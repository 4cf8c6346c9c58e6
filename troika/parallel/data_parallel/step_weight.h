// Internal. How much a rank's gradients weigh in an average (Replica::weigh), and where they are
// multiplied by it.
#pragma once

#include <troika/parallel/data_parallel/step_facts.h>
#include <troika/session/session.h>

#include <memory>

namespace troika::detail {

class StepWeight {
 public:
  // Gradients are multiplied by the weight, and sums divided by the mean of all ranks' afterwards;
  // or, where they may be of 16 bits, too few for numbers of samples, by the weight over the mean
  // before they are reduced.
  enum class Normalization { kAfterReduction, kBeforeReduction };

  StepWeight(Session session, Normalization normalization)
      : session_(std::move(session)), normalization_(normalization) {}

  // Returns this rank's weight in the next average.
  [[nodiscard]] const std::shared_ptr<double>& value() const { return value_; }
  [[nodiscard]] Normalization normalization() const { return normalization_; }

  // Returns the factor of this rank's gradients, with the weight `own` in this step. Collective
  // where they are normalised before their reduction.
  [[nodiscard]] double factor_before_reduction(double own) const;
  // Returns the factor of averages, and resets the weight. Throws UsageError where all ranks that
  // are there said zero.
  [[nodiscard]] double factor_after_reduction(const StepFacts& facts);

 private:
  Session session_;
  Normalization normalization_;
  std::shared_ptr<double> value_ = std::make_shared<double>(1.0);
};

}  // namespace troika::detail
