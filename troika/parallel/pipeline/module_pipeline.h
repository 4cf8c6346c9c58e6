// A model of the user's own as a row of named units, trained over a mesh of pipeline and data ranks
// with torch::optim: pipeline schedules, ZeRO 1 to 3, and recomputation of units.
//
//   troika::ModulePipeline model(units, loss, session, {.pipeline = 2, .zero_stage = 1});
//   torch::optim::AdamW optimizer(model.parameters(), 1e-3);
//   ... const double mean = model.train(batch.data, batch.target);  optimizer.step();
//
// docs/own-module.md is the guide.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/nn/named_unit.h>
#include <troika/nn/stage.h>
#include <troika/param/bucket_sizes.h>
#include <troika/param/parameter_shard.h>
#include <troika/session/session.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troika {

struct ModulePipelineOptions {
  // The ranks among which the units are divided; the others are data ranks.
  int pipeline = 1;
  // The schedule: "gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "zb-h1", "zb-h2" or "zb-v". A
  // module computes its weight gradients together with those of its input, so the zero-bubble
  // schedules have empty W.
  std::string schedule = "1f1b";
  // The stages on each pipeline rank, as in a recipe. 0 and 1 stand for as few as the schedule
  // takes (2 for "zb-v", 1 for others).
  int virtual_stages = 0;
  // The number of units of each stage, first to last; if empty, units are cut by their cost.
  std::vector<std::int64_t> stage_units = {};
  // The number of microbatches that a data rank's batch is split into.
  int microbatches = 1;
  // The ZeRO stage over the data ranks, 0 to 3. Stage 3 recomputes every unit.
  int zero_stage = 0;
  // When stages 2 and 3 cut the gradients of several microbatches: whole until the last is in, or
  // after each (docs/zero.md). The schedules "zb-*" need them whole.
  CutGradients cut_gradients = CutGradients::kLastMicrobatch;
  // The units that run again. kUnits stands for all, a recipe's activation_checkpoint = "full".
  Recompute recompute = Recompute::kNone;
  // The type of parameters and hidden states, fp32 or fp64.
  at::ScalarType type = at::kFloat;
  // The device of this rank's units: session.device(). Batches may lie elsewhere.
  at::Device device = at::kCPU;
  BucketSizes buckets = {};
  // The time-out of one collective or transfer. The default is the session's, or 60 s over the
  // caller's groups.
  std::optional<Seconds> timeout = {};
};

// The ranks among which units are divided, and those that share a stage. Every pipeline has the
// same ranks of the data axis at the same place.
struct PipelineGroups {
  Group pipeline = {};
  Group data = {};
};

// A model of units, cut into pipeline stages and replicated over data ranks. Thread safety: none.
// train(), evaluate(), clip_grad_norm() and each_value() are collective among all ranks. Once one
// of them has failed on a rank, all of them throw UsageError there ("an earlier step has failed"):
// make a new ModulePipeline.
class ModulePipeline {
 public:
  // Makes the groups: data ranks are neighbours, pipeline ranks are size / pipeline apart. Initial
  // values are those of the first data rank. Throws UsageError naming an option that does not fit,
  // a parameter that cannot be taken in, or one that differs between data ranks.
  ModulePipeline(const std::vector<NamedUnit>& units, const UnitLoss& loss, const Session& session,
                 const ModulePipelineOptions& options = {});
  // Uses existing groups; options.pipeline is pipeline.size().
  ModulePipeline(const std::vector<NamedUnit>& units, const UnitLoss& loss, PipelineGroups groups,
                 ModulePipelineOptions options = {});
  ModulePipeline(ModulePipeline&&) noexcept;
  ModulePipeline& operator=(ModulePipeline&&) noexcept;
  ~ModulePipeline();

  // Returns the tensors that this rank updates, in order, for torch::optim. train() sets their
  // gradients. Optimisers must work element by element (all of torch::optim but LBFGS).
  [[nodiscard]] std::vector<at::Tensor> parameters() const;
  [[nodiscard]] const std::vector<ParameterShard>& shards() const;

  // Runs forward and backward passes of this data rank's batch. It is [samples, ...] with any
  // number of samples, zero included, and the same on all ranks of a pipeline. Sets the gradient of
  // the mean loss over the samples of all data ranks, and returns that mean. Values written to
  // shards(), by an optimiser or by hand, or by torch::load to modules() are gathered first. A
  // parameter that a forward pass leaves out has a gradient of zero. Throws UsageError if no rank
  // has a sample; the next step works. Throws UsageError naming a parameter that was frozen, set to
  // be trained, added or replaced since the model was made, on ranks that have the unit. The other
  // ranks run into DeadlineError or PeerError.
  double train(const at::Tensor& inputs, const at::Tensor& targets);
  // Trains on any number of tensors, [samples, ...] each. Units and the loss take them by name.
  double train(const TensorMap& batch);
  // Return the mean loss alone, with modules in eval().
  double evaluate(const at::Tensor& inputs, const at::Tensor& targets);
  double evaluate(const TensorMap& batch);
  // Scales the gradients of train() so that their norm over the model is at most `max_norm`, and
  // returns the norm. A norm that is not finite leaves them as they are.
  double clip_grad_norm(double max_norm);

  // Calls `act` with the name and the whole value of each parameter and each buffer of this rank's
  // units, frozen ones among them, for saving and inspection. The value is valid during the call.
  // Buffers (batch-norm's statistics) are those of this data rank.
  void each_value(const std::function<void(const std::string&, const at::Tensor&)>& act);
  // Loads values: `value_of` gives the value for a name, undefined for one that stays as it is. Not
  // collective, but call it on all data ranks that have the unit, with the same values. Throws
  // UsageError naming a value of another shape.
  void load_values(const std::function<at::Tensor(const std::string& name)>& value_of);

  // Return the names and modules of this rank's units. Their parameters are NaN between calls at
  // stage 3. At stages 1 and 2 the parameters that other ranks update are out of date from an
  // optimiser's step to the next train(), evaluate() or each_value().
  [[nodiscard]] std::vector<std::string> unit_names() const;
  [[nodiscard]] std::vector<std::shared_ptr<torch::nn::Module>> modules() const;
  // Return this data rank and the number of data ranks, for a DistributedSampler.
  [[nodiscard]] int data_rank() const;
  [[nodiscard]] int data_ranks() const;
  // Returns the ranks of this pipeline, and those with the same units.
  [[nodiscard]] const PipelineGroups& groups() const;
  // Returns the stage of ZeRO.
  [[nodiscard]] int zero_stage() const;
  // Returns the time-out of one collective or transfer.
  [[nodiscard]] Seconds timeout() const;
  // Returns the bytes of values, gradients and buffers for them that this rank holds. The
  // optimiser's state is not included.
  [[nodiscard]] std::int64_t memory_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troika
