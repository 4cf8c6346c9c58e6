#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/index_range.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/device/facts.h>
#include <troika/optim/gradient_norm.h>
#include <troika/optim/schedule.h>
#include <troika/optim/shard_squares.h>
#include <troika/recipe/resolve.h>
#include <troika/train/precision.h>
#include <troika/train/replica_comparison.h>
#include <troika/train/trainer.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

namespace troika {
namespace {

// Enough samples for a steady figure, few enough to be quick.
constexpr std::int64_t kEvaluationSamples = 64;

ModelPlacement placement_of(const Recipe& recipe, const TrainerContext& context) {
  const RankGroups& groups = context.groups;
  ModelPlacement placement;
  placement.tensor = TensorAxis(groups.tensor, context.timeout);
  placement.pipeline_rank = groups.pipeline.rank();
  placement.sharding = sharding_of(recipe, groups.shard, groups.replicate);
  placement.data = groups.data;
  placement.timeout = context.timeout;
  placement.device = context.device;
  return placement;
}

// Values and gradients lie on the device by now. What cannot be planned on tensors without memory
// is refused here, before a step is begun in vain.
void check_state_fits(const OptimizerOptions& optimizer, const Arena& arena) {
  if (arena.device().is_cpu() || arena.device().is_meta()) return;
  const auto& kind = optimizer.kind;
  std::int64_t needed = 0;
  for (const LocalShard& shard : arena.trained_shards()) {
    needed += static_cast<std::int64_t>(shard.master.nbytes());
  }
  needed *= std::ssize(kind.kind().state_names(kind.options()));
  const DeviceFacts facts = facts_of(arena.device());
  const auto there = static_cast<std::int64_t>(facts.free_bytes) +
                     static_cast<std::int64_t>(facts.allocator ? facts.allocator->cached : 0);
  if (facts.total_bytes == 0 || needed <= there) return;
  throw UsageError("out of memory: the state of " + std::string(kind.kind().name()) + " needs " +
                       format_bytes(static_cast<std::uint64_t>(needed)) + " of " + facts.device +
                       ", which has " + format_bytes(static_cast<std::uint64_t>(there)) +
                       " left beside the model",
                   "parallel.zero_stage = 1 cuts it over the data ranks, and optimizer.kind = "
                   "\"sgd\" keeps less");
}

SyncGroups sync_groups(const Recipe& recipe, const TrainerContext& context) {
  const RankGroups& groups = context.groups;
  return {groups.world,
          groups.island,
          groups.islands,
          PartialGroups{groups.tensor, groups.embedding},
          context.timeout,
          groups.pipeline.size() > 1 ? 2.0 : 1.0,
          recipe.compress.kind().make(recipe.compress.options(),
                                      static_cast<std::uint64_t>(recipe.seed))};
}

LoaderOptions loader_options(const Recipe& recipe, int replica, int replicas, at::Device device) {
  LoaderOptions options;
  options.global_batch_size = recipe.train.global_batch_size;
  options.micro_batch_size = recipe.train.micro_batch_size;
  options.data_rank = replica;
  options.data_ranks = replicas;
  options.device = device;
  return options;
}

}  // namespace

PipelineOptions pipeline_options(const Recipe& recipe, const ModelPart& model, at::Device device) {
  PipelineOptions options;
  options.first_trained_stage = model.first_trained_stage();
  options.device = device;
  options.type = numeric_types(recipe.train.precision).compute;
  if (recipe.parallel.pipeline == 1) return options;  // every schedule is the plain one
  options.schedule = recipe.parallel.pipeline_schedule;
  options.virtual_stages = static_cast<int>(virtual_stages_per_rank(recipe.parallel));
  return options;
}

std::int64_t evaluation_chunk(const Recipe& recipe) {
  return std::max(kEvaluationSamples, recipe.train.global_batch_size);
}

std::int64_t evaluation_samples(const Recipe& recipe, std::int64_t held_out) {
  return std::min(held_out, recipe.train.evaluation_samples.value_or(evaluation_chunk(recipe)));
}

Trainer::Trainer(const Recipe& recipe, std::shared_ptr<const Dataset> dataset,
                 TrainerContext context)
    : recipe_(recipe),
      dataset_(std::move(dataset)),
      context_(std::move(context)),
      model_(recipe, placement_of(recipe, context_)),
      pipeline_(model_.stages(), groups().pipeline,
                pipeline_options(recipe, model_, context_.device), context_.trace) {
  const at::NoGradGuard no_autograd;
  model_.arena().initialize(static_cast<std::uint64_t>(recipe.seed));
  sync_ = context_.make_sync ? context_.make_sync(model_.arena(), context_)
                             : recipe.sync.kind().make(recipe.sync.options(), model_.arena(),
                                                       sync_groups(recipe, context_));
  sums_ = std::make_shared<ParameterSums>(
      model_.arena(),
      SumGroups{groups().tensor, groups().pipeline, model_.parameter_names(), context_.timeout});
  engine_.emplace(StepEngine::Parts{pipeline_, *sync_, model_.arena(), *sums_, contributes_loss()});
  engine_->sum_on_device();
  if (is_remote()) check_servers_suffice();
  check_state_fits(optimizer_options(), model_.arena());
  optimizer_ = make_optimizer(optimizer_options(), model_.arena(), sums_);
  if (recipe.train.precision == Precision::kFloat16) scaler_.emplace();
  start_loader();
}

double Trainer::loss_scale() const {
  const auto targets =
      static_cast<double>(recipe_.train.global_batch_size * model_.facts().targets_per_sample);
  return loss_scale_for(recipe_.train.precision, targets, scaler_ ? scaler_->scale() : 1);
}

StepBatch Trainer::next_batch() {
  const Span span(context_.trace, Track::kData, "wait for data");
  StepBatch batch = loader_->next(deadline());
  if (pads_microbatches()) {
    pad_with_empty_microbatches(batch.microbatches,
                                static_cast<std::size_t>(microbatches_per_step(recipe_)));
  }
  return batch;
}

void Trainer::rehearse_pass(std::int64_t samples) const {
  const Seconds waited(recipe_.debug.sample_seconds * static_cast<double>(samples));
  if (waited.count() > 0) std::this_thread::sleep_for(waited);
}

StepMetrics Trainer::step() {
  const at::NoGradGuard no_autograd;
  if (RemoteView* view = sync_->view()) return observe_step(*view);
  const auto started = Clock::now();
  const std::int64_t step = progress_.step + 1;
  if (context_.trace != nullptr) context_.trace->begin_step(step);
  const StepBatch batch = next_batch();
  rehearse_pass(batch.range.count);
  StepPart own;
  own.valid = batch.valid;
  if (note_query_) {
    const StepNotes notes = note_query_();
    own.stop_signal = notes.stop_signal;
    own.wants_checkpoint = notes.wants_checkpoint;
    own.data_hashed = notes.data_hashed;
  }
  StepMetrics metrics;
  metrics.step = step;
  metrics.learning_rate =
      learning_rate(recipe_.optimizer, recipe_.train.steps, recipe_.train.global_batch_size, step);
  const StepSums sums = train_on(batch, own, metrics);
  notes_ = {sums.stop_signal, sums.wants_checkpoint, sums.data_hashed};
  progress_.step = step;
  progress_.samples_consumed += recipe_.train.global_batch_size;
  progress_.tokens += sums.valid;
  metrics.tokens = progress_.tokens;
  metrics.data_wait_seconds = batch.waited_seconds;
  metrics.step_seconds = Seconds(Clock::now() - started).count();
  metrics.tokens_per_second = static_cast<double>(sums.valid) / metrics.step_seconds;
  return metrics;
}

StepSums Trainer::train_on(const StepBatch& batch, const StepPart& own, StepMetrics& metrics) {
  const double loss_scale = this->loss_scale();
  const Updater updater = engine_->differentiate(
      {batch.microbatches, loss_scale, own, context_.timeout, /*starts_norm=*/true});
  check(updater == Updater::kLocal, "a step whose update is another process's");
  queue_update(metrics.learning_rate);
  const StepSums sums = engine_->sums();
  const double gradient_scale = 1 / (loss_scale * (sums.weight > 0 ? sums.weight : 1));
  metrics.loss = sums.loss / sums.weight;
  update(batch, sums, gradient_scale, metrics);
  return sums;
}

bool Trainer::contributes_loss() const {
  return pipeline_.has_last_stage() && groups().tensor.rank() == 0;
}

bool Trainer::pads_microbatches() const {
  return exchanges_each_microbatch(recipe_.parallel) || model_.facts().pads_microbatches;
}

// Units that talk to each other have the same ones already, on one island.
bool Trainer::has_own_buffers() const {
  return differs() || (groups().data.size() > 1 && !model_.facts().pads_microbatches);
}

int Trainer::replica() const {
  return groups().islands.rank() * groups().data.size() + groups().data.rank();
}

int Trainer::replicas() const {
  return groups().islands.size() * groups().data.size();
}

std::optional<Failure> Trainer::compare_replicas(const ReplicaRank& own) {
  std::vector<NamedTensor> buffers;
  for (const ModelPart::Buffer& buffer : model_.buffers()) {
    if (!has_own_buffers() && buffer.is_here) buffers.push_back({buffer.name, buffer.tensor});
  }
  const ReplicaValues values{model_.arena(), *sync_, buffers};
  auto failure = troika::compare_replicas(groups().data, values, own, context_.timeout);
  if (!sync_->are_replicas_equal()) return failure;
  auto of_islands = troika::compare_replicas(groups().islands, values, own, context_.timeout);
  return failure ? failure : of_islands;
}

// Samples that are dealt out as the run goes are built when they are known.
void Trainer::start_loader() {
  if (is_remote()) return;
  LoaderOptions options = loader_options(recipe_, replica(), replicas(), context_.device);
  options.first_step = progress_.step + 1;
  options.first_ordinal = progress_.samples_consumed;
  loader_ = std::make_unique<Loader>(dataset_, options);
}

void Trainer::pad_with_empty_microbatches(std::vector<Microbatch>& microbatches,
                                          std::size_t count) const {
  if (microbatches.size() >= count) return;
  Microbatch empty =
      microbatches.empty()
          ? build_microbatches(*dataset_, Split::kTrain, {0, 1}, 1, progress_.step).front()
          : microbatches.front();
  for (NamedTensor& each : empty.tensors) each.tensor = each.tensor.narrow(0, 0, 0);
  empty.sample_ids = empty.sample_ids.narrow(0, 0, 0);
  empty.valid = 0;
  while (microbatches.size() < count) {
    empty.index = static_cast<int>(microbatches.size());
    microbatches.push_back(to_device(empty, context_.device));
  }
}

std::string Trainer::reason_to_skip(const StepSums& sums, double norm) {
  if (scaler_ && sums.nonfinite_ranks.empty()) {
    if (scaler_->update(norm, progress_.step + 1) == LossScaler::Verdict::kApply) return "";
    return "its gradients overflow at that loss scale, which is halved";
  }
  if (sums.nonfinite_ranks.empty() && std::isfinite(norm)) return "";
  if (recipe_.train.on_nonfinite == OnNonFinite::kSkip) return describe_nonfinite(sums, "");
  throw NonFiniteError(describe_nonfinite(sums, " at step " + std::to_string(progress_.step + 1)),
                       "lower optimizer.lr, lengthen optimizer.warmup_steps, or set "
                       "train.on_nonfinite = \"skip\"");
}

std::string Trainer::describe_nonfinite(const StepSums& sums, const std::string& where) const {
  if (!sums.nonfinite_ranks.empty()) {
    std::vector<std::string> ranks;
    for (const int rank : sums.nonfinite_ranks) ranks.push_back(std::to_string(rank));
    return "the loss is not finite" + where + " on rank " + join(ranks, ", ");
  }
  const std::string name = first_nonfinite_gradient();
  if (name.empty()) return "the gradient norm is not finite" + where;
  return "the gradient of '" + name + "' is not finite" + where +
         ", though the loss is on every rank";
}

std::string Trainer::first_nonfinite_gradient() const {
  const std::vector<ParameterSpec>& parameters = model_.parameters();
  std::int64_t first = std::ssize(parameters);
  for (const LocalShard& shard : model_.arena().trained_shards()) {
    if (at::isfinite(shard.gradient).all().item<bool>()) continue;
    const auto& name = model_.arena().parameters()[shard.parameter]->spec().name;
    const auto found = std::ranges::lower_bound(parameters, name, {}, &ParameterSpec::name);
    first = std::min<std::int64_t>(first, found - parameters.begin());
  }
  // Another rank may hold it.
  first = sync_->smallest(first, "gradient that is not finite");
  return first == std::ssize(parameters) ? "" : parameters[static_cast<std::size_t>(first)].name;
}

void Trainer::queue_update(double rate) {
  if (gradient_hook_ || !engine_->can_queue_update(*optimizer_)) return;
  const Span span(context_.trace, Track::kOptimizer, "queue the update");
  engine_->queue_update(*optimizer_, {.learning_rate = rate, .step = progress_.updates + 1},
                        recipe_.train.grad_clip);
}

void Trainer::update(const StepBatch& batch, const StepSums& sums, double gradient_scale,
                     StepMetrics& metrics) {
  metrics.grad_norm = [&] {
    const Span span(context_.trace, Track::kOptimizer, "gradient norm");
    return engine_->gradient_norm() * gradient_scale;
  }();
  if (gradient_hook_) gradient_hook_(batch, gradient_scale);
  if (scaler_) metrics.extras.push_back({"loss_scale", scaler_->scale()});
  metrics.skipped = reason_to_skip(sums, metrics.grad_norm);
  if (metrics.skipped.empty() && sums.weight == 0) metrics.skipped = "none of its targets counts";
  if (!metrics.skipped.empty()) {
    engine_->skip();
    return;
  }
  const Span span(context_.trace, Track::kOptimizer, "update");
  ++progress_.updates;
  engine_->update(*optimizer_,
                  {metrics.learning_rate,
                   gradient_scale * clip_factor(metrics.grad_norm, recipe_.train.grad_clip),
                   progress_.updates});
}

void Trainer::exchange_masters(std::span<const at::Tensor> masters) {
  Arena& arena = model_.arena();
  for (std::size_t i = 0; i < masters.size(); ++i) {
    const at::Tensor& master = arena.trained_shards()[i].master;
    const at::Tensor before = master.clone();
    master.copy_(masters[i]);
    masters[i].copy_(before);
  }
  arena.publish();
  sync_->refresh();
}

double Trainer::distance_from(std::span<const at::Tensor> means) const {
  std::vector<at::Tensor> differences;
  for (std::size_t i = 0; i < means.size(); ++i) {
    differences.push_back(model_.arena().trained_shards()[i].master - means[i]);
  }
  const detail::ShardSquares squares(model_.arena(), differences);
  const at::Tensor mean =
      at::full({1}, sums_->total(squares.by_chunk(deadline()), "consensus distance"), at::kDouble);
  sync_->average(mean);
  return std::sqrt(mean.item<double>());
}

// Replicas that differ are evaluated as their mean.
std::optional<Evaluation> Trainer::evaluate() {
  const at::NoGradGuard no_autograd;
  if (RemoteView* view = sync_->view()) view->fetch();
  if (!differs()) return evaluate_as_is();
  const std::vector<at::Tensor> masters = means_of(trained_masters());
  consensus_distance_ = distance_from(masters);
  exchange_masters(masters);
  std::optional<Evaluation> evaluation = evaluate_as_is();
  exchange_masters(masters);
  return evaluation;
}

std::optional<Evaluation> Trainer::evaluate_as_is() {
  const std::int64_t samples = evaluation_samples(recipe_, dataset_->samples(Split::kHeldOut));
  if (samples == 0) return std::nullopt;
  average_buffers();
  MetricFold metrics(recipe_, *dataset_);
  LossTerms own;
  std::int64_t valid = 0;
  const std::int64_t chunk = evaluation_chunk(recipe_);
  for (std::int64_t first = 0; first < samples; first += chunk) {
    const std::vector<Microbatch> microbatches =
        held_out_microbatches({first, std::min(chunk, samples - first)});
    for (const Microbatch& microbatch : microbatches) valid += microbatch.valid;
    own.add(evaluate_microbatches(microbatches, metrics));
  }
  const StepSums sums = engine_->sum({own, valid}, "held-out loss");
  if (sums.weight == 0) return std::nullopt;
  Evaluation evaluation;
  evaluation.held_out_loss = sums.loss / sums.weight;
  if (const auto bytes = dataset_->bytes_per_token()) {
    evaluation.held_out_bits_per_byte = evaluation.held_out_loss / std::log(2.0) / *bytes;
  }
  evaluation.metrics =
      metrics.values(groups().world, evaluation.held_out_loss, {"metrics", deadline()});
  return evaluation;
}

std::vector<Microbatch> Trainer::held_out_microbatches(IndexRange samples) const {
  IndexRange own = even_split(samples.count, replica(), replicas());
  own.first += samples.first;
  std::vector<Microbatch> microbatches = build_microbatches(
      *dataset_, Split::kHeldOut, own, recipe_.train.micro_batch_size, progress_.step);
  if (pads_microbatches()) {
    pad_with_empty_microbatches(
        microbatches, static_cast<std::size_t>(most_microbatches(recipe_, samples.count)));
  }
  for (Microbatch& each : microbatches) each = to_device(std::move(each), context_.device);
  return microbatches;
}

LossTerms Trainer::evaluate_microbatches(std::span<const Microbatch> microbatches,
                                         MetricFold& metrics) {
  PipelineExecutor::PredictionHook on_prediction;
  if (metrics.needs_outputs()) {
    const std::string target = traits_of(recipe_.model).sample.target().name;
    on_prediction = [&, target](const Microbatch& microbatch, const at::Tensor& outputs) {
      if (contributes_loss()) metrics.add(outputs, microbatch.tensors.at(target));
    };
  }
  return pipeline_.evaluate(microbatches, *sync_, context_.timeout, on_prediction).loss;
}

}  // namespace troika
