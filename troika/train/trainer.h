// One model in training on one rank: its parameters, its optimiser, and one step at a time. Every
// rank of a job runs the same steps; none of it prints or writes files.
#pragma once

#include <troika/data/dataset.h>
#include <troika/data/loader.h>
#include <troika/observe/metrics.h>
#include <troika/optim/loss_scaler.h>
#include <troika/optim/optimizer.h>
#include <troika/parallel/pipeline/executor.h>
#include <troika/parallel/pipeline/step_engine.h>
#include <troika/param/state_dict.h>
#include <troika/recipe/recipe.h>
#include <troika/sync/replica_sync.h>
#include <troika/train/metric_fold.h>
#include <troika/train/model_part.h>
#include <troika/train/trainer_context.h>

#include <functional>
#include <memory>

namespace troika {

// The progress of a run. Together with the recipe it says which samples come next.
struct TrainProgress {
  std::int64_t step = 0;              // finished steps
  std::int64_t samples_consumed = 0;  // over all ranks
  std::int64_t tokens = 0;            // targets trained on
  std::int64_t updates = 0;           // steps that were not skipped
};

// Returns the executor's options for the schedule of a resolved recipe.
[[nodiscard]] PipelineOptions pipeline_options(const Recipe& recipe, at::Device device = at::kCPU);

// Return the number of samples that an evaluation takes, over all ranks, out of `held_out`; and the
// number after which it builds the next microbatches.
[[nodiscard]] std::int64_t evaluation_samples(const Recipe& recipe, std::int64_t held_out);
[[nodiscard]] std::int64_t evaluation_chunk(const Recipe& recipe);

// Observes the gradients in the middle of a step, between the reduction and the update, for dumps.
// Gradients are sums over the job; `gradient_scale` makes them means.
using GradientHook = std::function<void(const StepBatch& batch, double gradient_scale)>;

// Returns the signal that asks this rank to end, or 0. The trainer asks once a step.
using StopQuery = std::function<int()>;

class Trainer {
 public:
  // Draws the initial parameters. Collective. `recipe` is resolved, for the ranks that `context`
  // has. Throws UsageError, DataError.
  Trainer(const Recipe& recipe, std::shared_ptr<const Dataset> dataset, TrainerContext context);

  // Takes one optimiser step. Collective. Throws NonFiniteError naming step and ranks (on_nonfinite
  // = stop), DeadlineError, PeerError, DataError. The metrics are the same on every rank, but for
  // the timings.
  [[nodiscard]] StepMetrics step();
  // Collective: returns mean loss and metrics over a fixed number of held-out samples that does not
  // depend on the layout. Returns nullopt where there are none, or none of their targets counts.
  [[nodiscard]] std::optional<Evaluation> evaluate();

  // Returns the whole state of the run, as this rank holds it. Collective. The tensors are masters
  // under their global names, "optimizer.<kind>.<parameter>", buffers (averaged over the data
  // ranks), and the state of the sync. The numbers are "step", "samples_consumed", "tokens",
  // "updates", "loss_scale", "good_steps". Tensors are views: restore() takes in the values written
  // to them.
  [[nodiscard]] StateDict state();
  // Returns the model alone, masters and buffers. Collective.
  [[nodiscard]] StateDict model_state();
  // Returns views of the gradients, in the middle of a step, under the parameters' names.
  [[nodiscard]] StateDict gradients() const;
  // List the whole tensors of these three, sorted by name: the same on every rank and layout.
  [[nodiscard]] std::vector<StateSpec> state_specs() const;
  [[nodiscard]] std::vector<StateSpec> model_specs() const;
  [[nodiscard]] std::vector<StateSpec> gradient_specs() const;
  // Collective: goes on from a state whose tensors have been written to those of state(). The next
  // step is the one behind its "step". Throws DataError where a number is missing.
  void restore(const StateDict& state);

  [[nodiscard]] const TrainProgress& progress() const { return progress_; }
  // Returns the part of the model that this rank holds.
  [[nodiscard]] const ModelPart& model() const { return model_; }
  [[nodiscard]] const PipelineExecutor& pipeline() const { return pipeline_; }
  // Returns the most activations that were alive at once in the last step, of a single virtual
  // stage and microbatch.
  [[nodiscard]] int peak_stage_activations() const { return engine_->peak_stage_activations(); }
  void set_gradient_hook(GradientHook hook) { gradient_hook_ = std::move(hook); }
  void set_stop_query(StopQuery query) { stop_query_ = std::move(query); }
  // Returns the signal that a rank's query gave in the last step, the same on all ranks. Take no
  // further step after it.
  [[nodiscard]] int stop_signal() const { return stop_signal_; }

 private:
  [[nodiscard]] const RankGroups& groups() const { return context_.groups; }
  [[nodiscard]] Deadline deadline() const { return Deadline::in(context_.timeout); }
  // Returns whether this rank's loss counts: every rank of a tensor axis has the same one.
  [[nodiscard]] bool contributes_loss() const;
  // Builds the next step's microbatches, padded where ranks have to pass equally many.
  [[nodiscard]] StepBatch next_batch();
  // Returns whether all ranks of the data axis pass their units equally often. They do at ZeRO
  // stage 3, and where units communicate with each other.
  [[nodiscard]] bool pads_microbatches() const;
  // Adds the masters of this rank's shards, or `values` of them, to a state.
  void add_parameters(StateDict& state, const std::string& prefix,
                      const std::function<at::Tensor(std::size_t shard)>& values) const;
  void add_buffers(StateDict& state);
  void add_optimizer(StateDict& state) const;
  void start_loader();
  // Collective: replaces running statistics of several data ranks by their mean.
  void average_buffers();
  // Builds this rank's share of held-out samples, by ordinal.
  [[nodiscard]] std::vector<Microbatch> held_out_microbatches(IndexRange samples) const;
  // Runs them forward, and passes this rank's predictions to the metrics.
  [[nodiscard]] LossTerms evaluate_microbatches(std::span<const Microbatch> microbatches,
                                                MetricFold& metrics);
  // Appends microbatches without samples until there are `count`.
  void pad_with_empty_microbatches(std::vector<Microbatch>& microbatches, std::size_t count) const;
  // Returns the reason why the step's gradients may not be applied; empty if they may.
  [[nodiscard]] std::string reason_to_skip(const StepSums& sums, double norm);
  // Collective: returns the name of the first parameter, by name, with such a gradient; empty if
  // there is none.
  [[nodiscard]] std::string first_nonfinite_gradient() const;
  // Describes the values that are not finite. Collective where the losses of all ranks are finite.
  [[nodiscard]] std::string describe_nonfinite(const StepSums& sums,
                                               const std::string& where) const;
  // Applies the step's gradients, or says in `metrics` why not.
  void update(const StepBatch& batch, const StepSums& sums, double gradient_scale,
              StepMetrics& metrics);

  Recipe recipe_;
  std::shared_ptr<const Dataset> dataset_;
  TrainerContext context_;
  ModelPart model_;
  std::unique_ptr<ReplicaSync> sync_;
  PipelineExecutor pipeline_;
  SharedSums sums_;
  std::optional<StepEngine> engine_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Loader> loader_;
  std::optional<LossScaler> scaler_;  // fp16 only
  TrainProgress progress_;
  GradientHook gradient_hook_;
  StopQuery stop_query_;
  int stop_signal_ = 0;
};

}  // namespace troika
