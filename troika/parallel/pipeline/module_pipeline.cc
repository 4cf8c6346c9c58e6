#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/mesh/mesh.h>
#include <troika/optim/gradient_norm.h>
#include <troika/parallel/data/data_axis.h>
#include <troika/parallel/data/module_tensors.h>
#include <troika/parallel/pipeline/cut.h>
#include <troika/parallel/pipeline/executor.h>
#include <troika/parallel/pipeline/module_pipeline.h>
#include <troika/parallel/pipeline/module_unit.h>
#include <troika/schedule/generate.h>

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <utility>

namespace troika {
namespace {

using detail::NamedTensor;

// As they are meant: a pipeline of one rank takes every setting.
ModulePipelineOptions settled(ModulePipelineOptions options, int pipeline) {
  options.pipeline = pipeline;
  if (options.zero_stage < 0 || options.zero_stage > 3) {
    throw UsageError("zero_stage = " + std::to_string(options.zero_stage) + ": there are 0 to 3");
  }
  if (options.microbatches < 1) {
    throw UsageError("microbatches = " + std::to_string(options.microbatches) + ": at least 1");
  }
  if (options.type != at::kFloat && options.type != at::kDouble) {
    throw UsageError(std::string("a ModulePipeline of ") + c10::toString(options.type),
                     "units compute in fp32 or fp64");
  }
  if (options.zero_stage == 3) options.recompute = Recompute::kBlocks;
  if (options.chunks == 0) options.chunks = fewest_chunks(options.schedule);
  check_schedule(options.schedule, {pipeline, options.chunks, options.microbatches});
  if (pipeline == 1) {
    options.schedule = "1f1b";
    options.chunks = 1;
    options.stage_units.clear();
  }
  return options;
}

std::vector<int> cut_units(std::span<const NamedUnit> units, const ModulePipelineOptions& options) {
  const int stages = options.pipeline * options.chunks;
  const auto count = static_cast<std::int64_t>(units.size());
  if (count < stages) {
    throw UsageError(std::to_string(count) + " units for " + std::to_string(stages) + " stages",
                     "name more units, or take fewer pipeline ranks or chunks");
  }
  std::set<std::string> names;
  for (const NamedUnit& each : units) {
    if (!names.insert(each.name).second) {
      throw UsageError("two units are called " + quote(each.name, 200));
    }
  }
  if (options.stage_units.empty()) {
    std::vector<double> costs;
    for (const NamedUnit& each : units) costs.push_back(each.cost);
    return cut_by_cost(costs, stages);
  }
  const std::vector<int> cut = cut_by_hand(options.stage_units);
  const bool fits = std::ssize(options.stage_units) == stages && cut.back() == count &&
                    std::ranges::all_of(options.stage_units, [](auto n) { return n > 0; });
  if (!fits) {
    throw UsageError("stage_units must be " + std::to_string(stages) +
                     " numbers, each at least 1, that add up to " + std::to_string(count) +
                     " units");
  }
  return cut;
}

PipelineGroups groups_of(const Session& session, int pipeline) {
  if (pipeline < 1 || session.size() % pipeline != 0) {
    throw UsageError("pipeline = " + std::to_string(pipeline) + " does not divide " +
                         std::to_string(session.size()) + " ranks",
                     "take a number of ranks that is a multiple of it");
  }
  const Mesh mesh({pipeline, session.size() / pipeline, 1, 1});
  const auto group = [&](const char* name, Axis axis) {
    if (mesh.size(axis) == session.size()) return session.world();
    return session.make_group(name, mesh.ranks_along(session.rank(), axis),
                              mesh.coordinate(session.rank(), axis));
  };
  PipelineGroups groups;
  groups.pipeline = mesh.size(Axis::kPipeline) == 1 ? Group() : group("pipeline", Axis::kPipeline);
  groups.data = mesh.size(Axis::kData) == 1 ? Group() : group("data", Axis::kData);
  return groups;
}

// Names of the whole model, all stages.
std::vector<std::string> names_of_all(const Arena& arena, const Group& pipeline, Seconds timeout) {
  std::string own;
  for (const auto& each : arena.parameters()) own += each->spec().name + "\n";
  std::vector<std::string> names;
  for (const std::string& text : Session::on(pipeline, timeout).gather(own, "parameter names")) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) names.push_back(line);
  }
  return names;
}

// The modules of other ranks are in the same mode.
class EvalMode {
 public:
  explicit EvalMode(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
    for (const auto& root : modules) {
      for (const auto& each : root->modules()) before_.emplace_back(each, each->is_training());
      root->eval();
    }
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

}  // namespace

struct ModulePipeline::Impl {
  Impl(const std::vector<NamedUnit>& all, const UnitLoss& loss, PipelineGroups the_groups,
       ModulePipelineOptions the_options);
  void make_stages(std::span<const NamedUnit> units, const UnitLoss& loss);
  void agree() const;
  void make_arena();
  // Values that have been written since the last pass are gathered.
  void refresh();
  std::vector<Microbatch> split(const at::Tensor& inputs, const at::Tensor& targets) const;
  // Sums over all ranks: of losses, and of samples.
  std::pair<double, double> sums(double loss_sum, std::int64_t samples) const;

  PipelineGroups groups;
  ModulePipelineOptions options;
  std::vector<ModuleUnit*> units;  // of this rank, held by the stages
  std::vector<std::unique_ptr<UnitStage>> stages;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<DataAxis> axis;
  std::unique_ptr<ParameterSums> norm_sums;
  std::unique_ptr<PipelineExecutor> executor;
  std::vector<ParameterPart> parts;
  std::int64_t step = 0;
  bool stale = false;
};

ModulePipeline::Impl::Impl(const std::vector<NamedUnit>& all, const UnitLoss& loss,
                           PipelineGroups the_groups, ModulePipelineOptions the_options)
    : groups(std::move(the_groups)),
      options(settled(std::move(the_options), groups.pipeline.size())) {
  make_stages(all, loss);
  agree();
  make_arena();
  std::vector<Stage*> chunks;
  for (const auto& stage : stages) chunks.push_back(stage.get());
  executor = std::make_unique<PipelineExecutor>(
      std::move(chunks), groups.pipeline,
      PipelineOptions{options.schedule, options.chunks, options.type}, nullptr);
}

void ModulePipeline::Impl::make_stages(std::span<const NamedUnit> all, const UnitLoss& loss) {
  const std::vector<int> cut = cut_units(all, options);
  const Schedule schedule = make_schedule(options.schedule, {options.pipeline, options.chunks, 1});
  int first_unit = 0;
  for (const int stage : schedule.stages_of(groups.pipeline.rank())) {
    std::vector<std::unique_ptr<Unit>> made;
    const auto begin = static_cast<std::size_t>(cut[static_cast<std::size_t>(stage)]);
    const auto end = static_cast<std::size_t>(cut[static_cast<std::size_t>(stage) + 1]);
    for (std::size_t i = begin; i < end; ++i) {
      auto one = std::make_unique<ModuleUnit>(
          all[i], i == 0 ? std::vector<std::int64_t>() : all[i - 1].output_shape,
          i + 1 == all.size() ? loss : UnitLoss(), options.recompute, options.type);
      units.push_back(one.get());
      made.push_back(std::move(one));
    }
    stages.push_back(std::make_unique<UnitStage>(std::move(made), first_unit, options.recompute));
    first_unit += static_cast<int>(end - begin);
  }
}

// The same modules with the same values on all data ranks; every parameter in one unit.
void ModulePipeline::Impl::agree() const {
  std::map<const void*, std::string> known;
  std::vector<NamedTensor> parameters, buffers;
  std::string complaint;
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
  for (const NamedTensor& each : parameters) {
    const auto [place, fresh] = known.emplace(each.tensor.unsafeGetTensorImpl(), each.name);
    if (!fresh && complaint.empty()) {
      complaint = "parameter " + quote(each.name, 200) + " is " + quote(place->second, 200) +
                  ", of another unit";
    }
  }
  if (std::ranges::none_of(parameters, [](const auto& e) { return e.tensor.requires_grad(); })) {
    complaint = "the units from " + quote(units.front()->name(), 200) + " to " +
                quote(units.back()->name(), 200) + " have no parameters to train";
  }
  const Session data = Session::on(groups.data, options.timeout);
  detail::complain_together(data, complaint,
                            "units do not share parameters, and a rank's units have some to train",
                            "units");
  detail::compare_modules(data, parameters, buffers);
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
  // A zero-bubble schedule has all units of a stage in use before the first is done.
  const bool whole = options.microbatches > 1 || options.schedule.starts_with("zb-");
  sharding.microbatches_per_step = whole ? std::max(options.microbatches, 2) : 1;
  sharding.buckets = options.buckets;
  arena = std::make_unique<Arena>(specs, NumericTypes{options.type, options.type}, sharding);
  for (const auto& stage : stages) stage->bind(*arena);
  for (ModuleUnit* unit : units) unit->store(*arena);
  stale = true;
  axis = std::make_unique<DataAxis>(*arena, PartialGroups(), options.timeout);
  SumGroups sum_groups;
  sum_groups.pipeline = groups.pipeline;
  sum_groups.timeout = options.timeout;
  if (groups.pipeline.size() > 1) {
    sum_groups.names = names_of_all(*arena, groups.pipeline, options.timeout);
  }
  norm_sums = std::make_unique<ParameterSums>(*arena, sum_groups);
  for (const Piece& piece : arena->pieces()) {
    const std::string& name = arena->parameters()[piece.parameter]->spec().name;
    parts.push_back({name, piece.begin, detail::leaf_on(piece.master)});
    parts.back().tensor.requires_grad_(true);
  }
}

void ModulePipeline::Impl::refresh() {
  for (ModuleUnit* unit : units) stale = unit->store(*arena) || stale;
  // What one rank has written all of them have to gather.
  const at::Tensor any = at::full({1}, stale ? 1 : 0, at::kInt);
  groups.data.all_reduce(any, ReduceOp::kMax, {"values written", Deadline::in(options.timeout)})
      .wait();
  if (any.item<int>() > 0) axis->after_update();
  stale = false;
}

std::vector<Microbatch> ModulePipeline::Impl::split(const at::Tensor& inputs,
                                                    const at::Tensor& targets) const {
  if (!inputs.defined() || !targets.defined() || inputs.dim() < 1 || targets.dim() < 1 ||
      inputs.size(0) != targets.size(0)) {
    throw UsageError("inputs and targets are not of the same number of samples",
                     "give tensors of [samples, ...] on every rank, of no samples where there are "
                     "none");
  }
  const auto x = inputs.tensor_split(options.microbatches);
  const auto y = targets.tensor_split(options.microbatches);
  std::vector<Microbatch> microbatches(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    microbatches[i].inputs = x[i];
    microbatches[i].targets = y[i];
    microbatches[i].valid = x[i].size(0);
    microbatches[i].step = step;
    microbatches[i].index = static_cast<int>(i);
  }
  return microbatches;
}

std::pair<double, double> ModulePipeline::Impl::sums(double loss_sum, std::int64_t samples) const {
  const bool tells = executor->has_last_stage();
  const at::Tensor both = at::zeros({2}, at::kDouble);
  both.data_ptr<double>()[0] = tells ? loss_sum : 0;
  both.data_ptr<double>()[1] = tells ? static_cast<double>(samples) : 0;
  const Deadline deadline = Deadline::in(options.timeout);
  groups.data.all_reduce(both, ReduceOp::kSum, {"loss", deadline}).wait();
  groups.pipeline.all_reduce(both, ReduceOp::kSum, {"loss of the last stage", deadline}).wait();
  const double count = both[1].item<double>();
  if (count == 0) {
    throw UsageError("no rank has a sample in this step",
                     "leave out a step for which no rank has one, on all ranks");
  }
  return {both[0].item<double>(), count};
}

ModulePipeline::ModulePipeline(const std::vector<NamedUnit>& units, const UnitLoss& loss,
                               const Session& session, const ModulePipelineOptions& options)
    : ModulePipeline(units, loss, groups_of(session, options.pipeline), options) {}

ModulePipeline::ModulePipeline(const std::vector<NamedUnit>& units, const UnitLoss& loss,
                               PipelineGroups groups, ModulePipelineOptions options)
    : impl_(std::make_unique<Impl>(units, loss, std::move(groups), std::move(options))) {}

ModulePipeline::ModulePipeline(ModulePipeline&&) noexcept = default;
ModulePipeline& ModulePipeline::operator=(ModulePipeline&&) noexcept = default;
ModulePipeline::~ModulePipeline() = default;

double ModulePipeline::train(const at::Tensor& inputs, const at::Tensor& targets) {
  Impl& own = *impl_;
  ++own.step;
  const std::vector<Microbatch> microbatches = own.split(inputs, targets);
  own.refresh();
  own.axis->begin_step(own.options.microbatches, own.options.timeout);
  const PipelineReport report =
      own.executor->train(microbatches, 1, *own.axis, own.options.timeout, {});
  own.axis->finish();
  own.stale = true;  // the optimiser is going to write
  const auto [loss, samples] = own.sums(report.loss_sum, inputs.size(0));
  for (std::size_t i = 0; i < own.parts.size(); ++i) {
    const at::Tensor& gradient = own.arena->pieces()[i].gradient;
    gradient.div_(samples);
    own.parts[i].tensor.mutable_grad() = detail::leaf_on(gradient);
  }
  return loss / samples;
}

double ModulePipeline::evaluate(const at::Tensor& inputs, const at::Tensor& targets) {
  Impl& own = *impl_;
  const std::vector<Microbatch> microbatches = own.split(inputs, targets);
  own.refresh();
  const EvalMode mode(modules());
  const PipelineReport report =
      own.executor->evaluate(microbatches, *own.axis, own.options.timeout);
  const auto [loss, samples] = own.sums(report.loss_sum, inputs.size(0));
  return loss / samples;
}

double ModulePipeline::clip_grad_norm(double max_norm) {
  if (!(max_norm > 0)) throw UsageError("clip_grad_norm() takes a norm above 0");
  const double norm = global_norm(*impl_->arena, *impl_->norm_sums);
  if (!std::isfinite(norm)) return norm;
  const double factor = clip_factor(norm, max_norm);
  if (factor == 1) return norm;
  for (const Piece& piece : impl_->arena->pieces()) piece.gradient.mul_(factor);
  return norm;
}

void ModulePipeline::each_parameter(
    const std::function<void(const std::string&, const at::Tensor&)>& act) {
  Impl& own = *impl_;
  own.refresh();
  for (std::size_t i = 0; i < own.units.size(); ++i) {
    const int unit = static_cast<int>(i);
    own.axis->need_values(unit, Direction::kForward);
    for (const auto& each : own.arena->parameters()) {
      if (each->spec().unit == unit) act(each->spec().name, each->value());
    }
    own.axis->release_values(unit);
  }
}

std::vector<at::Tensor> ModulePipeline::parameters() const {
  std::vector<at::Tensor> tensors;
  for (const ParameterPart& part : impl_->parts) tensors.push_back(part.tensor);
  return tensors;
}

const std::vector<ParameterPart>& ModulePipeline::parts() const {
  return impl_->parts;
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

std::int64_t ModulePipeline::memory_bytes() const {
  std::int64_t bytes = impl_->axis->buffer_bytes();
  for (const Storage kind : {Storage::kValues, Storage::kMasters, Storage::kGradients}) {
    bytes += impl_->arena->bytes(kind);
  }
  return bytes;
}

}  // namespace troika
