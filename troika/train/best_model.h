// Follows one figure of the held-out side from evaluation to evaluation: which model was the best,
// and when to stop waiting for a better one.
#pragma once

#include <troika/observe/metrics.h>
#include <troika/param/state_dict.h>
#include <troika/recipe/recipe.h>

#include <cstdint>
#include <optional>

namespace troika {

// Returns the figure of an evaluation that [train] best_metric names: the held-out loss where it is
// "none" or "loss". Returns nullopt where there is none, or no number.
[[nodiscard]] std::optional<double> figure_of(const Evaluation& evaluation,
                                              const std::string& metric);
// Returns whether more of it is better.
[[nodiscard]] bool is_higher_better(const std::string& metric);

class BestModel {
 public:
  // Follows [train] best_metric and early_stop_patience.
  explicit BestModel(const TrainOptions& options);

  // Takes an evaluation; the same on every rank. Returns whether it is the best so far. A figure
  // that is no number is no gain, and neither is a metric of a model whose loss is none. A metric
  // that has no value for other reasons (held-out samples of one class have no AUC) says nothing of
  // the model: such an evaluation does not count.
  bool observe(std::int64_t step, const std::optional<Evaluation>& evaluation);
  // Add what it knows to the numbers of a run's state ("best.step", "best.value",
  // "best.without_gain"), and take it back.
  void save(StateDict& state) const;
  void load(const StateDict& state);
  // Has the next evaluation count as the best, where the file of the best model cannot be kept.
  void forget_best() { best_.reset(); }
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
  std::string metric_;
  std::int64_t patience_;
  bool higher_is_better_;
  std::int64_t without_gain_ = 0;
  std::optional<Best> best_;
};

}  // namespace troika
