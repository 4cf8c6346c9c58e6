// Which checkpoints stay beside the newest: the best by a figure of the held-out samples.
#pragma once

#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/observe/metrics.h>
#include <troika/param/state_dict.h>
#include <troika/recipe/recipe.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troika {

// The number of a manifest that says how good the checkpoint's model is, by [train] best_metric or
// the held-out loss; absent where it was not evaluated.
inline constexpr const char* kHeldOutNumber = "held_out";

// Returns the figure of a checkpoint's model; nullopt where it was not evaluated after that step,
// or is in doubt (checkpoint/doubt.h).
[[nodiscard]] std::optional<double> held_out_figure(const Manifest& manifest);
// Returns what [train] best_metric of its recipe names; "none" where it has no recipe that can be
// read.
[[nodiscard]] std::string metric_of(const Manifest& manifest);

struct RatedStep {
  double figure = 0;
  std::int64_t step = 0;
};
// Sorts the best by a metric to the front; of equals the earliest.
void sort_best_first(std::vector<RatedStep>& steps, const std::string& metric);

class BestCheckpoints {
 public:
  // Follows [checkpoint] keep_best by [train] best_metric.
  explicit BestCheckpoints(const Recipe& recipe);

  // Takes the evaluation after a step, the same on every rank. Returns whether a checkpoint is to
  // be taken, since it is among the best.
  bool observe(const std::optional<Evaluation>& evaluation);
  // Add what it knows to the numbers of a run's state ("held_out", "best_kept.0", ...), and take it
  // back.
  void save(StateDict& state) const;
  void load(const StateDict& state);
  // Returns the steps of the best checkpoints in a folder. Reads their manifests; one that cannot
  // be read is none.
  [[nodiscard]] std::vector<std::int64_t> steps_to_keep(const CheckpointFolder& folder) const;

 private:
  std::int64_t keep_;
  std::string metric_;
  std::optional<double> now_;  // of the step that has just been taken
  std::vector<double> best_;   // the best first, at most `keep_`
};

}  // namespace troika
