// Follows one figure of the held-out side from evaluation to evaluation: which model was the best,
// and when to stop waiting for a better one.
#pragma once

#include <troika/observe/metrics.h>
#include <troika/recipe/recipe.h>

#include <cstdint>
#include <optional>

namespace troika {

class BestModel {
 public:
  // Follows [train] best_metric and early_stop_patience.
  explicit BestModel(const TrainOptions& options);

  // Takes an evaluation; the same on every rank. Returns whether it is the best so far. An
  // evaluation without the figure, or with no number for it, is no gain.
  bool observe(std::int64_t step, const std::optional<Evaluation>& evaluation);
  // Returns whether the run ends because so many evaluations in a row have brought no gain.
  [[nodiscard]] bool gives_up() const { return patience_ > 0 && without_gain_ >= patience_; }

  struct Best {
    std::int64_t step = 0;
    double value = 0;
  };
  // Returns the best evaluation; nullopt before the first gain.
  [[nodiscard]] const std::optional<Best>& best() const { return best_; }
  [[nodiscard]] const std::string& metric() const { return metric_; }
  [[nodiscard]] std::int64_t evaluations_without_gain() const { return without_gain_; }

 private:
  [[nodiscard]] std::optional<double> value_of(const Evaluation& evaluation) const;

  std::string metric_;
  std::int64_t patience_;
  bool higher_is_better_;
  std::int64_t without_gain_ = 0;
  std::optional<Best> best_;
};

}  // namespace troika
