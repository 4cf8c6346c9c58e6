#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/index_range.h>
#include <troika/base/text.h>
#include <troika/optim/gradient_norm.h>
#include <troika/optim/schedule.h>
#include <troika/recipe/resolve.h>
#include <troika/train/precision.h>
#include <troika/train/trainer.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace troika {
namespace {

// Enough samples for a steady figure, few enough to be quick.
constexpr std::int64_t kEvaluationSamples = 64;

ModelPlacement placement_of(const Recipe& recipe, const Job& job) {
  ModelPlacement placement;
  placement.tensor = TensorAxis(job.tensor(), job.timeout());
  placement.pipeline_rank = job.pipeline().rank();
  placement.sharding = sharding_of(recipe, job.shard(), job.replicate());
  placement.data = job.data();
  placement.timeout = job.timeout();
  return placement;
}

LoaderOptions loader_options(const Recipe& recipe, const Job& job) {
  LoaderOptions options;
  options.global_batch_size = recipe.train.global_batch_size;
  options.micro_batch_size = recipe.train.micro_batch_size;
  options.data_rank = job.data().rank();
  options.data_ranks = job.data().size();
  return options;
}

}  // namespace

PipelineOptions pipeline_options(const Recipe& recipe) {
  PipelineOptions options;
  options.type = numeric_types(recipe.train.precision).compute;
  if (recipe.parallel.pipeline == 1) return options;  // every schedule is the plain one
  options.schedule = recipe.parallel.pipeline_schedule;
  options.virtual_stages = static_cast<int>(virtual_stages_per_rank(recipe.parallel));
  return options;
}

std::int64_t evaluation_samples(const Recipe& recipe, std::int64_t held_out) {
  return std::min(held_out, std::max(kEvaluationSamples, recipe.train.global_batch_size));
}

Trainer::Trainer(const Recipe& recipe, std::shared_ptr<const Dataset> dataset, Job& job)
    : recipe_(recipe),
      dataset_(std::move(dataset)),
      job_(job),
      model_(recipe, placement_of(recipe, job)),
      pipeline_(model_.stages(), job.pipeline(), pipeline_options(recipe), &job.trace()) {
  const at::NoGradGuard no_autograd;
  model_.arena().initialize(static_cast<std::uint64_t>(recipe.seed));
  data_axis_ = std::make_unique<DataAxis>(
      model_.arena(), PartialGroups{job_.tensor(), job_.embedding()}, job_.timeout());
  sums_ = std::make_shared<ParameterSums>(
      model_.arena(),
      SumGroups{job_.tensor(), job_.pipeline(), model_.parameter_names(), job_.timeout()});
  optimizer_ = make_optimizer(recipe.optimizer, model_.arena(), sums_);
  if (recipe.train.precision == Precision::kFloat16) scaler_.emplace();
  loader_ = std::make_unique<Loader>(dataset_, loader_options(recipe, job_));
}

StepMetrics Trainer::step() {
  const at::NoGradGuard no_autograd;
  const auto started = Clock::now();
  const std::int64_t step = state_.step + 1;
  job_.trace().begin_step(step);
  StepBatch batch = [&] {
    const Span span(&job_.trace(), Track::kData, "wait for data");
    return loader_->next(job_.deadline());
  }();
  const auto targets =
      static_cast<double>(recipe_.train.global_batch_size * model_.facts().targets_per_sample);
  const double loss_scale =
      loss_scale_for(recipe_.train.precision, targets, scaler_ ? scaler_->scale() : 1);
  if (pads_microbatches()) {
    pad_with_empty_microbatches(batch.microbatches,
                                static_cast<std::size_t>(microbatches_per_step(recipe_)));
  }
  data_axis_->begin_step(static_cast<int>(batch.microbatches.size()), job_.timeout());
  const LossSum loss = run_microbatches(batch, loss_scale);
  data_axis_->finish();
  const Sums sums = loss.wait();

  StepMetrics metrics;
  metrics.step = step;
  const double gradient_scale =
      1 / (loss_scale * static_cast<double>(std::max<std::int64_t>(sums.valid, 1)));
  metrics.loss = sums.loss / static_cast<double>(sums.valid);
  metrics.learning_rate =
      learning_rate(recipe_.optimizer, recipe_.train.steps, recipe_.train.global_batch_size, step);
  metrics.grad_norm = [&] {
    const Span span(&job_.trace(), Track::kOptimizer, "gradient norm");
    return global_norm(model_.arena(), *sums_) * gradient_scale;
  }();
  if (gradient_hook_) gradient_hook_(batch, gradient_scale);
  if (scaler_) metrics.extras.push_back({"loss_scale", scaler_->scale()});
  metrics.skipped = reason_to_skip(sums, metrics.grad_norm);
  if (metrics.skipped.empty()) {
    update(sums, gradient_scale, metrics.grad_norm, metrics.learning_rate);
  }
  stop_signal_ = sums.stop_signal;
  state_.step = step;
  state_.samples_consumed += recipe_.train.global_batch_size;
  state_.tokens += sums.valid;
  metrics.tokens = state_.tokens;
  metrics.data_wait_seconds = batch.waited_seconds;
  metrics.step_seconds = Seconds(Clock::now() - started).count();
  metrics.tokens_per_second = static_cast<double>(sums.valid) / metrics.step_seconds;
  return metrics;
}

LossSum Trainer::run_microbatches(const StepBatch& batch, double loss_scale) {
  std::optional<LossSum> sum;
  const PipelineReport report =
      pipeline_.train(batch.microbatches, loss_scale, *data_axis_, job_.timeout(),
                      [&](double loss) { sum = sum_over_ranks(loss, batch.valid, "loss"); });
  peak_stage_activations_ = report.peak_stage_activations;
  return *sum;
}

bool Trainer::contributes_loss() const {
  return pipeline_.has_last_stage() && job_.tensor().rank() == 0;
}

LossSum Trainer::sum_over_ranks(double loss, std::int64_t valid, std::string_view label) const {
  if (!contributes_loss()) loss = 0, valid = 0;
  // The first stage has its last forward pass long before the last stage has.
  const double transfer_factor = job_.pipeline().size() > 1 ? 2 : 1;
  return {job_.world(),
          loss,
          valid,
          {label, Deadline::in(transfer_factor * job_.timeout())},
          stop_query_ ? stop_query_() : 0};
}

bool Trainer::pads_microbatches() const {
  return recipe_.parallel.zero_stage == 3 || model_.facts().pads_microbatches;
}

void Trainer::average_buffers() {
  // Units that talk to each other have the same ones already.
  if (job_.data().size() == 1 || model_.facts().pads_microbatches) return;
  for (const ModelPart::Buffer& buffer : model_.buffers()) {
    if (!buffer.is_here || !buffer.tensor.is_floating_point()) continue;
    at::Tensor tensor = buffer.tensor;
    job_.data()
        .all_reduce(tensor, ReduceOp::kAverage, {"running statistics", job_.deadline()})
        .wait();
  }
}

std::vector<NamedTensor> Trainer::whole_buffers() {
  const at::NoGradGuard no_autograd;
  average_buffers();
  std::vector<NamedTensor> whole;
  for (const ModelPart::Buffer& buffer : model_.buffers()) {
    at::Tensor tensor = buffer.tensor.clone();
    int root = 0;
    while (std::ranges::count(stages_of(recipe_.parallel, root), buffer.stage) == 0) ++root;
    job_.pipeline().broadcast(tensor, root, {"running statistics", job_.deadline()}).wait();
    whole.push_back({buffer.name, tensor});
  }
  return whole;
}

void Trainer::pad_with_empty_microbatches(std::vector<Microbatch>& microbatches,
                                          std::size_t count) const {
  if (microbatches.size() >= count) return;
  Microbatch empty =
      microbatches.empty()
          ? build_microbatches(*dataset_, Split::kHeldOut, {0, 1}, 1, state_.step).front()
          : microbatches.front();
  for (at::Tensor* tensor :
       {&empty.inputs, &empty.targets, &empty.sample_ids, &empty.document_ids}) {
    if (tensor->defined()) *tensor = tensor->narrow(0, 0, 0);
  }
  empty.valid = 0;
  microbatches.resize(count, empty);
}

std::string Trainer::reason_to_skip(const Sums& sums, double norm) {
  if (scaler_ && sums.nonfinite_ranks.empty()) {
    if (scaler_->update(norm, state_.step + 1) == LossScaler::Verdict::kApply) return "";
    return "its gradients overflow at that loss scale, which is halved";
  }
  if (sums.nonfinite_ranks.empty() && std::isfinite(norm)) return "";
  if (recipe_.train.on_nonfinite == OnNonFinite::kSkip) return describe_nonfinite(sums, "");
  throw NonFiniteError(describe_nonfinite(sums, " at step " + std::to_string(state_.step + 1)),
                       "lower optimizer.lr, lengthen optimizer.warmup_steps, or set "
                       "train.on_nonfinite = \"skip\"");
}

std::string Trainer::describe_nonfinite(const Sums& sums, const std::string& where) const {
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
  for (const LocalShard& shard : model_.arena().local_shards()) {
    if (at::isfinite(shard.gradient).all().item<bool>()) continue;
    const auto& name = model_.arena().parameters()[shard.parameter]->spec().name;
    const auto found = std::ranges::lower_bound(parameters, name, {}, &ParameterSpec::name);
    first = std::min<std::int64_t>(first, found - parameters.begin());
  }
  // Another rank may hold it.
  const at::Tensor shared = at::full({1}, first, at::kLong);
  job_.world()
      .all_reduce(shared, ReduceOp::kMin, {"gradient that is not finite", job_.deadline()})
      .wait();
  first = shared.item<std::int64_t>();
  return first == std::ssize(parameters) ? "" : parameters[static_cast<std::size_t>(first)].name;
}

void Trainer::update(const Sums& sums, double gradient_scale, double norm, double learning_rate) {
  if (sums.valid == 0) return;  // no target counted: nothing to learn from
  const Span span(&job_.trace(), Track::kOptimizer, "update");
  ++state_.updates;
  optimizer_->step(
      {learning_rate, gradient_scale * clip_factor(norm, recipe_.train.grad_clip), state_.updates});
  data_axis_->after_update();
}

std::optional<Evaluation> Trainer::evaluate() {
  const at::NoGradGuard no_autograd;
  const std::int64_t samples = evaluation_samples(recipe_, dataset_->samples(Split::kHeldOut));
  if (samples == 0) return std::nullopt;
  std::vector<Microbatch> microbatches = build_microbatches(
      *dataset_, Split::kHeldOut, even_split(samples, job_.data().rank(), job_.data().size()),
      recipe_.train.micro_batch_size, state_.step);
  std::int64_t valid = 0;
  for (const Microbatch& microbatch : microbatches) valid += microbatch.valid;
  average_buffers();
  if (pads_microbatches()) {
    pad_with_empty_microbatches(microbatches,
                                static_cast<std::size_t>(most_microbatches(recipe_, samples)));
  }
  const double loss = pipeline_.evaluate(microbatches, *data_axis_, job_.timeout()).loss_sum;
  const Sums sums = sum_over_ranks(loss, valid, "held-out loss").wait();
  if (sums.valid == 0) return std::nullopt;
  Evaluation evaluation;
  evaluation.held_out_loss = sums.loss / static_cast<double>(sums.valid);
  if (const auto bytes = dataset_->bytes_per_token()) {
    evaluation.held_out_bits_per_byte = evaluation.held_out_loss / std::log(2.0) / *bytes;
  }
  return evaluation;
}

}  // namespace troika
