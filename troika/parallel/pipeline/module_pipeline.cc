#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/nn/module_tensors.h>
#include <troika/nn/module_unit.h>
#include <troika/optim/gradient_norm.h>
#include <troika/parallel/pipeline/executor.h>
#include <troika/parallel/pipeline/module_pipeline.h>
#include <troika/parallel/pipeline/module_pipeline_setup.h>
#include <troika/parallel/pipeline/step_engine.h>
#include <troika/schedule/generate.h>
#include <troika/sync/all_reduce_sync.h>

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace troika {
namespace {

using detail::ValidationError;

// The modules of other ranks are in the same mode.
class EvalMode {
 public:
  explicit EvalMode(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
    for (const auto& root : modules) {
      for (const auto& each : root->modules()) before_.emplace_back(each, each->is_training());
    }
    for (const auto& root : modules) root->eval();  // units may share modules
  }
  // Each as it was; train() would reach its children.
  ~EvalMode() {
    for (const auto& [module, training] : before_) module->train(training);
  }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before_;  // parents come first
};

// Samples of a batch, or -1 where its tensors disagree.
std::int64_t samples_of(const TensorMap& batch) {
  if (batch.empty()) return -1;
  for (const NamedTensor& each : batch) {
    if (!each.tensor.defined() || each.tensor.dim() < 1) return -1;
  }
  for (const NamedTensor& each : batch) {
    if (each.tensor.size(0) != batch[0].size(0)) return -1;
  }
  return batch[0].size(0);
}

double mean_of(const StepSums& sums) {
  if (sums.weight == 0) {
    throw UsageError("no rank has a sample in this step",
                     "leave out a step for which no rank has one, on all ranks");
  }
  return sums.loss / sums.weight;
}

}  // namespace

struct ModulePipeline::Impl {
  Impl(const std::vector<NamedUnit>& all, const UnitLoss& loss, PipelineGroups the_groups,
       ModulePipelineOptions the_options);
  void make_stages(std::span<const NamedUnit> all, std::span<const int> cut, const UnitLoss& loss);
  [[nodiscard]] ValidationError validate_tensors(std::span<const NamedTensor> parameters,
                                                 std::span<const NamedTensor> buffers) const;
  // The same modules with the same values on all data ranks; every parameter in one unit.
  void agree() const;
  void make_arena();
  // Around what is collective. An exception on the way leaves buffers in use and gradients halfway:
  // begin() throws from then on.
  void begin();
  void end() { in_step = false; }
  // What the optimiser, or the caller, has written to shards and modules is gathered.
  void refresh();
  std::vector<Microbatch> split(const TensorMap& batch);

  PipelineGroups groups;
  ModulePipelineOptions options;
  Seconds timeout;
  bool splits_backward = false;
  std::vector<ModuleUnit*> units;  // of this rank, held by the stages
  std::vector<std::unique_ptr<UnitStage>> stages;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<AllReduceSync> sync;
  std::unique_ptr<ParameterSums> norm_sums;
  std::unique_ptr<PipelineExecutor> executor;
  std::optional<StepEngine> engine;
  std::vector<ParameterShard> shards;
  std::int64_t step = 0;
  bool in_step = false;
};

ModulePipeline::Impl::Impl(const std::vector<NamedUnit>& all, const UnitLoss& loss,
                           PipelineGroups the_groups, ModulePipelineOptions the_options)
    : groups(std::move(the_groups)),
      options(detail::resolved(std::move(the_options), groups.pipeline.size())),
      timeout(options.timeout.value_or(Seconds(60))) {
  if (!loss) {
    throw UsageError("a ModulePipeline without a loss",
                     "give a function of the last unit's output and the targets");
  }
  detail::agree_on_setup(groups, timeout, all, options);
  const std::vector<int> cut = detail::cut_units(all, options);
  ValidationError problem;
  try {
    make_stages(all, cut, loss);
  } catch (const Error& error) {  // of one stage's units, that all stages have to hear of
    problem = {error.what(), error.hint()};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    problem = {"a unit cannot be made: " + text.substr(0, text.find('\n')), ""};
  }
  detail::throw_on_all_ranks(groups, timeout, problem);
  agree();
  make_arena();
  std::vector<Stage*> stage_pointers;
  for (const auto& stage : stages) stage_pointers.push_back(stage.get());
  executor = std::make_unique<PipelineExecutor>(
      std::move(stage_pointers), groups.pipeline,
      PipelineOptions{options.schedule, options.virtual_stages, options.type, options.device},
      nullptr);
  engine.emplace(
      StepEngine::Parts{*executor, *sync, *arena, *norm_sums, executor->has_last_stage()});
}

void ModulePipeline::Impl::make_stages(std::span<const NamedUnit> all, std::span<const int> cut,
                                       const UnitLoss& loss) {
  const Schedule schedule =
      make_schedule(options.schedule, {options.pipeline, options.virtual_stages, 1});
  splits_backward = schedule.splits_backward();
  const std::vector<std::vector<UnitTensor>> flows = flows_of(all);
  const std::vector<NamedUnit> resolved = with_default_takes({all.begin(), all.end()});
  int first_unit = 0;
  for (const int stage : schedule.stages_of(groups.pipeline.rank())) {
    std::vector<std::unique_ptr<Unit>> made;
    const auto begin = static_cast<std::size_t>(cut[static_cast<std::size_t>(stage)]);
    const auto end = static_cast<std::size_t>(cut[static_cast<std::size_t>(stage) + 1]);
    for (std::size_t i = begin; i < end; ++i) {
      auto one = std::make_unique<ModuleUnit>(resolved[i], flows[i], flows[i + 1],
                                              i + 1 == all.size() ? loss : UnitLoss(),
                                              options.recompute, options.type);
      units.push_back(one.get());
      made.push_back(std::move(one));
    }
    // Every stage has something to train (validate_tensors), so that the model's first is in the
    // first stage.
    const auto first =
        std::ranges::find_if(made, [](const auto& unit) { return !unit->specs().empty(); });
    const int first_trained = stage == 0 ? static_cast<int>(first - made.begin()) : -1;
    stages.push_back(
        std::make_unique<UnitStage>(std::move(made), first_unit, options.recompute, first_trained));
    first_unit += static_cast<int>(end - begin);
  }
}

ValidationError ModulePipeline::Impl::validate_tensors(std::span<const NamedTensor> parameters,
                                                       std::span<const NamedTensor> buffers) const {
  if (std::ranges::none_of(parameters, [](const auto& e) { return e.tensor.requires_grad(); })) {
    return {"the units from " + quote(units.front()->name(), 200) + " to " +
                quote(units.back()->name(), 200) + " have no parameters to train",
            "put them into one stage with units that have some (stage_units)"};
  }
  std::map<const void*, std::string> known;
  for (const NamedTensor& each : parameters) {
    const auto [place, fresh] = known.emplace(each.tensor.unsafeGetTensorImpl(), each.name);
    if (fresh) continue;
    return {"parameter " + quote(each.name, 200) + " is " + quote(place->second, 200) +
                ", of another unit",
            "units do not share parameters: make one unit of those that do"};
  }
  for (const auto& [kind, tensors] :
       {std::pair("parameter", parameters), std::pair("buffer", buffers)}) {
    for (const NamedTensor& each : tensors) {
      ValidationError problem = detail::validate_tensor(kind, each);
      if (!problem.text.empty()) return problem;
    }
  }
  return {};
}

void ModulePipeline::Impl::agree() const {
  std::vector<NamedTensor> parameters, buffers;
  const auto add = [](std::vector<NamedTensor>& all, const ModuleUnit& unit,
                      std::vector<NamedTensor> more) {
    for (NamedTensor& each : more) {
      all.push_back({unit.name() + "." + each.name, std::move(each.tensor)});
    }
  };
  for (const ModuleUnit* unit : units) {
    add(parameters, *unit, detail::parameters_of(*unit->module()));
    add(buffers, *unit, detail::buffers_of(*unit->module()));
  }
  detail::throw_on_all_ranks(groups, timeout, validate_tensors(parameters, buffers));
  const Session data = Session::on(groups.data, timeout);
  ValidationError difference;
  try {
    detail::compare_modules(data, parameters, buffers);
  } catch (const UsageError& error) {  // on all data ranks; other stages have to hear of it
    difference = {error.what(), error.hint()};
  }
  detail::throw_on_all_ranks(groups, timeout, difference);
  detail::broadcast_tensors(data, parameters, 0);
  detail::broadcast_tensors(data, buffers, 0);
}

void ModulePipeline::Impl::make_arena() {
  std::vector<ParameterSpec> specs;
  for (const auto& stage : stages) {
    specs.insert(specs.end(), stage->specs().begin(), stage->specs().end());
  }
  Sharding sharding;
  sharding.stage = options.zero_stage;
  sharding.shard = groups.data;
  sharding.microbatches_per_step = options.microbatches;
  sharding.cut_gradients = options.cut_gradients;
  sharding.splits_backward = splits_backward;
  sharding.buckets = options.buckets;
  arena = std::make_unique<Arena>(specs, NumericTypes{options.type, options.type}, sharding,
                                  options.device);
  for (const auto& stage : stages) stage->bind(*arena);
  for (ModuleUnit* unit : units) unit->store(*arena);
  AllReduceOptions reduction;
  reduction.all = {groups.data, groups.pipeline};
  reduction.timeout = timeout;
  sync = std::make_unique<AllReduceSync>(*arena, std::move(reduction));
  SumGroups sum_groups;
  sum_groups.pipeline = groups.pipeline;
  sum_groups.timeout = timeout;
  if (groups.pipeline.size() > 1) {
    sum_groups.names = detail::names_of_all(*arena, groups.pipeline, timeout);
  }
  norm_sums = std::make_unique<ParameterSums>(*arena, sum_groups);
  for (const LocalShard& shard : arena->local_shards()) {
    const std::string& name = arena->parameters()[shard.parameter]->spec().name;
    shards.push_back({name, shard.begin, detail::leaf_on(shard.master),
                      arena->parameters()[shard.parameter]->spec().shape});
    shards.back().tensor.requires_grad_(true);
  }
}

void ModulePipeline::Impl::begin() {
  if (in_step) {
    throw UsageError("an earlier step of this ModulePipeline has failed",
                     "make a new ModulePipeline, and a new optimiser");
  }
  in_step = true;
}

// Always: writes of an optimiser to shards leave no trace.
void ModulePipeline::Impl::refresh() {
  for (ModuleUnit* unit : units) unit->store(*arena);
  sync->refresh();
}

std::vector<Microbatch> ModulePipeline::Impl::split(const TensorMap& batch) {
  if (samples_of(batch) < 0) {
    const bool alone = groups.data.size() * groups.pipeline.size() == 1;
    in_step = in_step || !alone;  // others are in this step
    std::vector<std::string> names;
    for (const NamedTensor& each : batch) names.push_back(each.name);
    throw UsageError(join(names, " and ") + " are not of the same number of samples",
                     "give tensors of [samples, ...] on every rank, of no samples where there are "
                     "none");
  }
  std::vector<Microbatch> microbatches(static_cast<std::size_t>(options.microbatches));
  for (const NamedTensor& each : batch) {
    const auto parts = each.tensor.tensor_split(options.microbatches);
    for (std::size_t i = 0; i < parts.size(); ++i) microbatches[i].tensors.add(each.name, parts[i]);
  }
  for (std::size_t i = 0; i < microbatches.size(); ++i) {
    microbatches[i].valid = microbatches[i].samples();
    microbatches[i].step = step + 1;
    microbatches[i].index = static_cast<int>(i);
    microbatches[i] = to_device(std::move(microbatches[i]), options.device);
  }
  return microbatches;
}

ModulePipeline::ModulePipeline(const std::vector<NamedUnit>& units, const UnitLoss& loss,
                               const Session& session, const ModulePipelineOptions& options)
    : ModulePipeline(units, loss, detail::groups_of(session, options.pipeline),
                     detail::with_timeout(options, session.timeout())) {}

ModulePipeline::ModulePipeline(const std::vector<NamedUnit>& units, const UnitLoss& loss,
                               PipelineGroups groups, ModulePipelineOptions options)
    : impl_(std::make_unique<Impl>(units, loss, std::move(groups), std::move(options))) {}

ModulePipeline::ModulePipeline(ModulePipeline&&) noexcept = default;
ModulePipeline& ModulePipeline::operator=(ModulePipeline&&) noexcept = default;
ModulePipeline::~ModulePipeline() = default;

double ModulePipeline::train(const at::Tensor& inputs, const at::Tensor& targets) {
  return train(TensorMap{{"inputs", inputs}, {"targets", targets}});
}

double ModulePipeline::train(const TensorMap& batch) {
  Impl& own = *impl_;
  const std::vector<Microbatch> microbatches = own.split(batch);
  own.begin();
  ++own.step;
  own.refresh();
  (void)own.engine->differentiate({microbatches, 1, {}, own.timeout});
  const StepSums sums = own.engine->sums();
  own.end();
  const double mean = mean_of(sums);
  for (std::size_t i = 0; i < own.shards.size(); ++i) {
    const at::Tensor& gradient = own.arena->local_shards()[i].gradient;
    gradient.div_(sums.weight);
    own.shards[i].tensor.mutable_grad() = detail::leaf_on(gradient);
  }
  return mean;
}

double ModulePipeline::evaluate(const at::Tensor& inputs, const at::Tensor& targets) {
  return evaluate(TensorMap{{"inputs", inputs}, {"targets", targets}});
}

double ModulePipeline::evaluate(const TensorMap& batch) {
  Impl& own = *impl_;
  const std::vector<Microbatch> microbatches = own.split(batch);
  own.begin();
  own.refresh();
  const EvalMode mode(modules());
  StepPart part;
  part.loss = own.executor->evaluate(microbatches, *own.sync, own.timeout).loss;
  const StepSums sums = own.engine->sum(part, "loss");
  own.end();
  return mean_of(sums);
}

double ModulePipeline::clip_grad_norm(double max_norm) {
  Impl& own = *impl_;
  if (!(max_norm > 0)) throw UsageError("clip_grad_norm() takes a norm above 0");
  if (own.step == 0) {
    throw UsageError("clip_grad_norm() before the first train(): there are no gradients",
                     "call it between train() and the optimiser's step()");
  }
  own.begin();
  const double norm = own.engine->gradient_norm();
  own.end();
  if (!std::isfinite(norm)) return norm;
  const double factor = clip_factor(norm, max_norm);
  if (factor == 1) return norm;
  for (const LocalShard& shard : own.arena->local_shards()) shard.gradient.mul_(factor);
  return norm;
}

void ModulePipeline::each_value(
    const std::function<void(const std::string&, const at::Tensor&)>& act) {
  Impl& own = *impl_;
  own.begin();
  own.refresh();
  for (std::size_t i = 0; i < own.units.size(); ++i) {
    const int number = static_cast<int>(i);
    own.sync->unshard(number, Direction::kForward);
    own.units[i]->each_value(act);
    own.sync->reshard(number);
  }
  own.end();
}

void ModulePipeline::load_values(
    const std::function<at::Tensor(const std::string& name)>& value_of) {
  for (ModuleUnit* unit : impl_->units) {
    unit->load_values(value_of);
    unit->store(*impl_->arena);
  }
}

std::vector<at::Tensor> ModulePipeline::parameters() const {
  std::vector<at::Tensor> tensors;
  for (const ParameterShard& shard : impl_->shards) tensors.push_back(shard.tensor);
  return tensors;
}

const std::vector<ParameterShard>& ModulePipeline::shards() const {
  return impl_->shards;
}

std::vector<std::string> ModulePipeline::unit_names() const {
  std::vector<std::string> names;
  for (const ModuleUnit* unit : impl_->units) names.push_back(unit->name());
  return names;
}

std::vector<std::shared_ptr<torch::nn::Module>> ModulePipeline::modules() const {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const ModuleUnit* unit : impl_->units) modules.push_back(unit->module());
  return modules;
}

int ModulePipeline::data_rank() const {
  return impl_->groups.data.rank();
}

int ModulePipeline::data_ranks() const {
  return impl_->groups.data.size();
}

const PipelineGroups& ModulePipeline::groups() const {
  return impl_->groups;
}

int ModulePipeline::zero_stage() const {
  return impl_->options.zero_stage;
}

Seconds ModulePipeline::timeout() const {
  return impl_->timeout;
}

std::int64_t ModulePipeline::memory_bytes() const {
  std::int64_t bytes = impl_->sync->buffer_bytes();
  for (const Storage kind : {Storage::kWorkingWeights, Storage::kMasters, Storage::kGradients}) {
    bytes += impl_->arena->bytes(kind);
  }
  return bytes;
}

}  // namespace troika
