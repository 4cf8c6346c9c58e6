// Metrics that have no value in an evaluation, as an AUC of one class: said once each.
#pragma once

#include <troika/observe/metrics.h>
#include <troika/recipe/recipe.h>

#include <string>
#include <vector>

namespace troika {

class UndefinedMetrics {
 public:
  // Follows [train] metrics.
  explicit UndefinedMetrics(const TrainOptions& options);

  // Returns a sentence for each metric that an evaluation lacks for the first time. None where the
  // loss is no number: that says enough.
  [[nodiscard]] std::vector<std::string> observe(const Evaluation& evaluation);
  // Logs them as warnings.
  void warn(const Evaluation& evaluation);

 private:
  std::vector<std::string> unseen_;  // metrics that nothing has been said of
  std::string best_;
};

}  // namespace troika
