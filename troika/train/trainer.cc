#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/optim/gradient_norm.h>
#include <troika/optim/schedule.h>
#include <troika/train/precision.h>
#include <troika/train/trainer.h>

#include <cmath>
#include <utility>

namespace troika {
namespace {

// Enough samples for a steady figure, few enough to be quick.
constexpr std::int64_t kEvaluationSamples = 64;

}  // namespace

Trainer::Trainer(const Recipe& recipe, std::shared_ptr<const Dataset> dataset, Job& job)
    : Trainer(recipe, build_model(recipe.model, static_cast<std::uint64_t>(recipe.seed)),
              std::move(dataset), job) {}

Trainer::Trainer(const Recipe& recipe, Model model, std::shared_ptr<const Dataset> dataset,
                 Job& job)
    : recipe_(recipe),
      dataset_(std::move(dataset)),
      job_(job),
      stage_(std::move(model.units), 0),
      facts_(model.facts) {
  const c10::InferenceMode no_autograd;
  arena_ =
      std::make_unique<Arena>(stage_.specs(), numeric_types(recipe.train.precision), job_.data());
  stage_.bind(*arena_);
  arena_->initialize(static_cast<std::uint64_t>(recipe.seed));
  optimizer_ = make_optimizer(recipe.optimizer, *arena_);
  reducer_ = std::make_unique<GradientReducer>(*arena_, job_.data());
  if (recipe.train.precision == Precision::kFloat16) scaler_.emplace();
  LoaderOptions options;
  options.global_batch_size = recipe.train.global_batch_size;
  options.micro_batch_size = recipe.train.micro_batch_size;
  options.data_rank = job_.data().rank();
  options.data_ranks = job_.data().size();
  loader_ = std::make_unique<Loader>(dataset_, options);
}

StepMetrics Trainer::step() {
  const c10::InferenceMode no_autograd;
  const auto started = Clock::now();
  const std::int64_t step = state_.step + 1;
  job_.trace().begin_step(step);
  StepBatch batch = [&] {
    const Span span(&job_.trace(), Track::kData, "wait for data");
    return loader_->next(job_.deadline());
  }();
  const auto targets =
      static_cast<double>(recipe_.train.global_batch_size * facts_.targets_per_sample);
  const double loss_scale =
      loss_scale_for(recipe_.train.precision, targets, scaler_ ? scaler_->scale() : 1);
  reducer_->begin_step(static_cast<int>(batch.microbatches.size()), job_.timeout());
  const LossSum loss = run_microbatches(batch, loss_scale);
  reducer_->finish();
  const Sums sums = loss.wait();

  StepMetrics metrics;
  metrics.step = step;
  const double gradient_scale =
      1 / (loss_scale * static_cast<double>(std::max<std::int64_t>(sums.valid, 1)));
  metrics.loss = sums.loss / static_cast<double>(sums.valid);
  metrics.learning_rate = learning_rate(recipe_.optimizer, recipe_.train, step);
  metrics.grad_norm = [&] {
    const Span span(&job_.trace(), Track::kOptimizer, "gradient norm");
    return global_norm(*arena_) * gradient_scale;
  }();
  if (gradient_hook_) gradient_hook_(batch, gradient_scale);
  if (scaler_) metrics.extras.push_back({"loss_scale", scaler_->scale()});
  metrics.skipped = reason_to_skip(sums, metrics.grad_norm);
  if (metrics.skipped.empty()) {
    update(sums, gradient_scale, metrics.grad_norm, metrics.learning_rate);
  }
  state_.step = step;
  state_.samples_consumed += recipe_.train.global_batch_size;
  state_.tokens += sums.valid;
  metrics.tokens = state_.tokens;
  metrics.data_wait_seconds = batch.waited_seconds;
  metrics.step_seconds = Seconds(Clock::now() - started).count();
  metrics.tokens_per_second = static_cast<double>(sums.valid) / metrics.step_seconds;
  return metrics;
}

LossSum Trainer::run_microbatches(StepBatch& batch, double loss_scale) {
  double loss = 0;
  std::optional<LossSum> sum;
  for (std::size_t i = 0; i < batch.microbatches.size(); ++i) {
    Saved saved;
    saved.microbatch = batch.microbatches[i];
    saved.loss_scale = loss_scale;
    {
      const Span span(&job_.trace(), Track::kForward, "forward");
      loss += stage_.forward({}, saved).loss_sum;
    }
    if (i + 1 == batch.microbatches.size()) sum = sum_over_ranks(loss, batch.valid, "loss");
    const Span span(&job_.trace(), Track::kBackward, "backward");
    stage_.backward(saved, {}, *reducer_);
  }
  return sum ? *sum : sum_over_ranks(0, 0, "loss");
}

LossSum Trainer::sum_over_ranks(double loss, std::int64_t valid, std::string_view label) const {
  return {job_.world(), loss, valid, {label, job_.deadline()}};
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
  for (const auto& parameter : arena_->parameters()) {
    if (!at::isfinite(parameter->gradient()).all().item<bool>()) {
      return "the gradient of '" + parameter->spec().name + "' is not finite" + where +
             ", though the loss is on every rank";
    }
  }
  return "the gradient norm is not finite" + where;
}

void Trainer::update(const Sums& sums, double gradient_scale, double norm, double learning_rate) {
  if (sums.valid == 0) return;  // no target counted: nothing to learn from
  const Span span(&job_.trace(), Track::kOptimizer, "update");
  ++state_.updates;
  optimizer_->step(
      {learning_rate, gradient_scale * clip_factor(norm, recipe_.train.grad_clip), state_.updates});
}

std::optional<Evaluation> Trainer::evaluate() {
  const c10::InferenceMode no_autograd;
  const std::int64_t samples =
      std::min(dataset_->samples(Split::kHeldOut),
               std::max(kEvaluationSamples, recipe_.train.global_batch_size));
  if (samples == 0) return std::nullopt;
  const Group& group = job_.data();
  double loss = 0;
  std::int64_t valid = 0;
  for (const Microbatch& microbatch :
       build_microbatches(*dataset_, Split::kHeldOut, share_of(samples, group.rank(), group.size()),
                          recipe_.train.micro_batch_size, state_.step)) {
    Saved saved;
    saved.microbatch = microbatch;
    saved.mode = Mode::kEvaluate;
    loss += stage_.forward({}, saved).loss_sum;
    valid += microbatch.valid;
  }
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
