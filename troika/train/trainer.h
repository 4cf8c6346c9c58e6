// One model in training on one rank: its parameters, its optimiser, and one step at a time. Every
// rank of a job runs the same steps; none of it prints or writes files.
#pragma once

#include <troika/base/failure.h>
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

class FlatCopies;
struct ReplicaRank;

// The progress of a run. Together with the recipe it says which samples come next.
struct TrainProgress {
  std::int64_t step = 0;              // finished steps
  std::int64_t samples_consumed = 0;  // over all ranks
  std::int64_t tokens = 0;            // targets trained on
  std::int64_t updates = 0;           // steps that were not skipped
};

// Returns the executor's options for the schedule of a resolved recipe and its model.
[[nodiscard]] PipelineOptions pipeline_options(const Recipe& recipe, const ModelPart& model,
                                               at::Device device = at::kCPU);

// Return the number of samples that an evaluation takes, over all ranks, out of `held_out`; and the
// number after which it builds the next microbatches.
[[nodiscard]] std::int64_t evaluation_samples(const Recipe& recipe, std::int64_t held_out);
[[nodiscard]] std::int64_t evaluation_chunk(const Recipe& recipe);

// Observes the gradients in the middle of a step, between the reduction and the update, for dumps.
// Gradients are sums over the job; `gradient_scale` makes them means.
using GradientHook = std::function<void(const StepBatch& batch, double gradient_scale)>;

// The notes that a rank sends with each step on matters outside of training, and the notes of all
// ranks together.
struct StepNotes {
  int stop_signal = 0;            // asks the run to end; 0: none. Of all: the first one
  bool wants_checkpoint = false;  // of all: a rank does
  bool data_hashed = false;       // the data's contents are known. Of all: on every rank
};

// Returns this rank's. The trainer asks once a step.
using NoteQuery = std::function<StepNotes()>;

class Trainer {
 public:
  // Draws the initial parameters. Collective. `recipe` is resolved, for the ranks that `context`
  // has. Throws UsageError, DataError.
  Trainer(const Recipe& recipe, std::shared_ptr<const Dataset> dataset, TrainerContext context);

  // Takes one optimiser step. Collective. Throws NonFiniteError naming step and ranks (on_nonfinite
  // = stop), DeadlineError, PeerError, DataError. The metrics are the same on every rank, but for
  // the timings.
  // Where parameters lie on servers and this process looks on, it waits for one of the workers'.
  [[nodiscard]] StepMetrics step();
  // Trains for servers: takes the samples that are dealt out, one pass. Returns false, and does
  // nothing, once all is trained. Throws as step().
  [[nodiscard]] bool work();
  // Ends the workers and the servers that this process looks on at, if it does. Call it last.
  void leave();
  // Collective: returns mean loss and metrics over a fixed number of held-out samples that does not
  // depend on the layout. Returns nullopt where there are none, or none of their targets counts.
  [[nodiscard]] std::optional<Evaluation> evaluate();

  // Returns how far replicas that may differ were from their mean in the last evaluation; nothing
  // where they are equal.
  [[nodiscard]] std::optional<double> consensus_distance() const { return consensus_distance_; }

  // Returns the whole state of the run, as this rank holds it. Collective. The tensors are masters
  // under their global names, "optimizer.<kind>.<parameter>", buffers (averaged over the data
  // ranks), and the state of the sync. Where data ranks have buffers of their own, they are there
  // as "replica.<data rank>.<buffer>", too. The numbers are "step", "samples_consumed", "tokens",
  // "updates", "loss_scale", "good_steps".
  [[nodiscard]] StateDict state();
  // Returns the tensors of state() that restore() goes on from, for a state that has the tensors
  // that `has` says: views, for values to be written to. Buffers are this data rank's own where the
  // state is of as many data ranks, and averages elsewhere.
  [[nodiscard]] StateDict places(const std::function<bool(const std::string& name)>& has) const;
  // Returns the names of parameters that are trained, and were frozen in a state that has the
  // tensors that `has` says: the optimiser begins them with zeros. Sorted.
  [[nodiscard]] std::vector<std::string> unfrozen_since(
      const std::function<bool(const std::string& name)>& has) const;
  // Returns views of the model's masters and of this data rank's buffers, for initial values to be
  // written to.
  [[nodiscard]] StateDict model_places() const;
  // Collective: takes in what has been written to model_places().
  void adopt_values();
  // Collective: compares the parameters of replicas between two steps, and the buffers that data
  // ranks have in common. Those of data ranks always; those of islands where they have just taken
  // their mean. Returns what differs on this rank; other ranks may find nothing. `own` is this rank
  // in messages.
  [[nodiscard]] std::optional<Failure> compare_replicas(const ReplicaRank& own);
  // Collective: replaces running statistics of several data ranks by their mean, so that what is
  // written of the model is all that the next step begins with.
  void average_buffers() const;
  // Returns the model alone, masters and buffers. Collective.
  [[nodiscard]] StateDict model_state();
  // Returns views of the gradients, in the middle of a step, under the names of the trained
  // parameters.
  [[nodiscard]] StateDict gradients() const;
  // List the whole tensors of these three, sorted by name: the same on every rank.
  [[nodiscard]] std::vector<StateSpec> state_specs() const;
  [[nodiscard]] std::vector<StateSpec> model_specs() const;
  [[nodiscard]] std::vector<StateSpec> gradient_specs() const;
  // Collective: goes on from a state whose tensors have been written to places(). The next
  // step is the one behind its "step". Throws DataError where a number is missing.
  void restore(const StateDict& state);

  [[nodiscard]] const TrainProgress& progress() const { return progress_; }
  // Returns the part of the model that this rank holds.
  [[nodiscard]] const ModelPart& model() const { return model_; }
  [[nodiscard]] const PipelineExecutor& pipeline() const { return pipeline_; }
  // Returns the most activations that were alive at once in the last step, of a single virtual
  // stage and microbatch.
  [[nodiscard]] int peak_stage_activations() const { return engine_->peak_stage_activations(); }
  // Sets the hook of the next steps. On a device they wait for the sums before their update.
  void set_gradient_hook(GradientHook hook) { gradient_hook_ = std::move(hook); }
  void set_note_query(NoteQuery query) { note_query_ = std::move(query); }
  // Returns what all ranks told with the last step, the same on each. Take no further step after a
  // signal.
  [[nodiscard]] const StepNotes& notes() const { return notes_; }

 private:
  [[nodiscard]] const RankGroups& groups() const { return context_.groups; }
  [[nodiscard]] Deadline deadline() const { return Deadline::in(context_.timeout); }
  // Returns whether this rank's loss counts: every rank of a tensor axis has the same one.
  [[nodiscard]] bool contributes_loss() const;
  // Takes the step of this batch at metrics.learning_rate, and notes its loss, its norm, and
  // whether it was skipped. Returns its sums.
  StepSums train_on(const StepBatch& batch, const StepPart& own, StepMetrics& metrics);
  // Computes the gradients of samples, which servers are to apply.
  [[nodiscard]] RemoteUpdate differentiate_for_servers(const DealtSamples& dealt);
  // Takes so many steps on samples, an even part of them each.
  [[nodiscard]] RemoteUpdate take_local_steps(const DealtSamples& dealt, std::int64_t steps);
  // Returns the steps that a worker takes on its samples of a step, at least 1, and the rate of
  // one of them, from 0.
  [[nodiscard]] std::int64_t remote_steps() const;
  [[nodiscard]] double local_rate(std::int64_t step, std::int64_t index) const;
  // Builds the microbatches of samples of a step, on the device.
  [[nodiscard]] StepBatch batch_of(std::int64_t step, IndexRange samples) const;
  [[nodiscard]] const OptimizerOptions& optimizer_options() const {
    return context_.optimizer ? *context_.optimizer : recipe_.optimizer;
  }
  // Waits for the workers' next step, where this process looks on.
  [[nodiscard]] StepMetrics observe_step(RemoteView& view);
  // Throws UsageError where the model keeps statistics that servers do not.
  void check_servers_suffice() const;
  // Returns what divides a loss before its gradients are computed, and so multiplies them.
  [[nodiscard]] double loss_scale() const;
  // Builds the next step's microbatches, padded where ranks have to pass equally many.
  [[nodiscard]] StepBatch next_batch();
  // Waits as long as the recipe's [debug] says that a pass over so many samples does.
  void rehearse_pass(std::int64_t samples) const;
  // Returns whether all ranks of the data axis pass their units equally often: where they exchange
  // values or gradients in every microbatch, and where units communicate with each other.
  [[nodiscard]] bool pads_microbatches() const;
  // Adds `values` of `shards`, the first of Arena::local_shards(), to a state, under the names that
  // `name_of` gives to parameters; those without a name are left out. Where replicas differ, the
  // values of all of them are one, which the first writes; `own` ones each replica writes.
  using ShardValues = std::function<at::Tensor(std::size_t shard)>;
  using NameOf = std::function<std::string(const std::string& parameter)>;
  using HasTensor = std::function<bool(const std::string& name)>;
  enum class Of { kAll, kOwn };
  // Names the parameters that a run keeps.
  [[nodiscard]] NameOf saved_name() const;
  void add_parameters(StateDict& state, std::span<const LocalShard> shards, const NameOf& name_of,
                      const ShardValues& values, Of of = Of::kAll) const;
  void add_buffers(StateDict& state) const;
  void add_optimizer(StateDict& state, const NameOf& name_of, Of of) const;
  // Returns the names of the optimiser's values.
  [[nodiscard]] std::vector<std::string_view> state_names() const;
  // Returns tensors of the masters' type, one for each trained parameter.
  [[nodiscard]] std::vector<StateSpec> trained_specs(const std::string& prefix) const;
  // Returns whether a state has such a tensor of any parameter.
  [[nodiscard]] bool has_any(const std::string& prefix, const HasTensor& has) const;
  // Returns whether parameters lie on servers.
  [[nodiscard]] bool is_remote() const {
    return sync_->work() != nullptr || sync_->view() != nullptr;
  }
  // Returns whether there are several replicas that may differ.
  [[nodiscard]] bool differs() const { return sync_->replicas().count > 1; }
  // Collective over them: returns the means of tensors.
  [[nodiscard]] std::vector<at::Tensor> means_of(std::span<const at::Tensor> values) const;
  [[nodiscard]] std::vector<at::Tensor> trained_masters() const;
  // Return the running statistics here that are averaged, and, collectively, their means.
  [[nodiscard]] std::vector<at::Tensor> averaged_buffers() const;
  [[nodiscard]] FlatCopies mean_buffers() const;
  // Collective over all ranks: returns the root of the mean square distance of the replicas from
  // their mean (Kong et al. 2021, definition 1). `means`: this rank's part of the mean, by trained
  // shard.
  [[nodiscard]] double distance_from(std::span<const at::Tensor> means) const;
  // Exchanges these masters, by trained shard, with those that are there.
  void exchange_masters(std::span<const at::Tensor> masters);
  // This rank's place among those that share out samples.
  [[nodiscard]] int replica() const;
  [[nodiscard]] int replicas() const;
  [[nodiscard]] std::optional<Evaluation> evaluate_as_is();
  // Returns whether running statistics differ between the data ranks.
  [[nodiscard]] bool has_own_buffers() const;
  void start_loader();
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
  // Queues the update on a device, at learning rate `rate`, where the host need not see the
  // gradients' sums before.
  void queue_update(double rate);
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
  NoteQuery note_query_;
  StepNotes notes_;
  std::optional<double> consensus_distance_;
};

}  // namespace troika
