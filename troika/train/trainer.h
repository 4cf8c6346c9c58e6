// One model in training on one rank: its parameters, its optimiser, and one step at a time. Every
// rank of a job runs the same steps; none of it prints or writes files.
#pragma once

#include <troika/config/recipe.h>
#include <troika/data/dataset.h>
#include <troika/data/loader.h>
#include <troika/models/model.h>
#include <troika/observe/metrics.h>
#include <troika/optim/loss_scaler.h>
#include <troika/optim/optimizer.h>
#include <troika/parallel/data/gradient_reducer.h>
#include <troika/train/job.h>
#include <troika/train/loss_sum.h>

#include <functional>
#include <memory>

namespace troika {

// Where a run stands: together with the recipe it says which samples come next.
struct TrainState {
  std::int64_t step = 0;              // finished steps
  std::int64_t samples_consumed = 0;  // over all ranks
  std::int64_t tokens = 0;            // targets trained on
  std::int64_t updates = 0;           // steps that were not skipped
};

// Called in the middle of a step, between the reduction and the update: gradients are sums over the
// job, `gradient_scale` makes them means. For dumps.
using GradientHook = std::function<void(const StepBatch& batch, double gradient_scale)>;

class Trainer {
 public:
  // Collective. `recipe` is resolved. Draws the initial parameters. Throws UsageError, DataError.
  Trainer(const Recipe& recipe, std::shared_ptr<const Dataset> dataset, Job& job);

  // Collective: one optimiser step. Throws NonFiniteError naming step and ranks (on_nonfinite =
  // stop), DeadlineError, PeerError, DataError. The same metrics on every rank, but for the
  // timings.
  [[nodiscard]] StepMetrics step();
  // Collective: mean loss over a fixed number of held-out samples that does not depend on the
  // layout; nothing where there are none.
  [[nodiscard]] std::optional<Evaluation> evaluate();

  [[nodiscard]] const TrainState& state() const { return state_; }
  [[nodiscard]] const Arena& arena() const { return *arena_; }
  [[nodiscard]] const ModelFacts& facts() const { return facts_; }
  void set_gradient_hook(GradientHook hook) { gradient_hook_ = std::move(hook); }

 private:
  Trainer(const Recipe& recipe, Model model, std::shared_ptr<const Dataset> dataset, Job& job);

  using Sums = LossSum::Result;
  // Forward and backward passes; the loss is on its way to the other ranks before the last
  // backward pass begins.
  [[nodiscard]] LossSum run_microbatches(StepBatch& batch, double loss_scale);
  [[nodiscard]] LossSum sum_over_ranks(double loss, std::int64_t valid,
                                       std::string_view label) const;
  // Why the step's gradients may not be applied; empty where they may.
  [[nodiscard]] std::string reason_to_skip(const Sums& sums, double norm);
  [[nodiscard]] std::string describe_nonfinite(const Sums& sums, const std::string& where) const;
  void update(const Sums& sums, double gradient_scale, double norm, double learning_rate);

  Recipe recipe_;
  std::shared_ptr<const Dataset> dataset_;
  Job& job_;
  UnitStage stage_;
  ModelFacts facts_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<Loader> loader_;
  std::optional<LossScaler> scaler_;  // fp16 only
  TrainState state_;
  GradientHook gradient_hook_;
};

}  // namespace troika
