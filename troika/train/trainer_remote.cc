// A trainer whose parameters lie on servers: one that trains for them, and one that looks on.
#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/observe/log.h>
#include <troika/optim/gradient_norm.h>
#include <troika/optim/schedule.h>
#include <troika/train/trainer.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

namespace troika {

void Trainer::check_servers_suffice() const {
  for (const ModelPart::Buffer& buffer : model_.buffers()) {
    if (!buffer.tensor.is_floating_point()) continue;
    throw UsageError("kind = \"server\": the running statistics '" + buffer.name +
                         "' would stay with each worker",
                     "write [sync] kind = \"local\" or \"all_reduce\"");
  }
}

void Trainer::leave() {
  if (RemoteView* view = sync_->view()) view->close();
}

bool Trainer::work() {
  const at::NoGradGuard no_autograd;
  RemoteWork* remote = sync_->work();
  check(remote != nullptr, "a worker without servers");
  const std::optional<DealtSamples> dealt = remote->next_samples();
  if (!dealt) return false;
  progress_.step = dealt->step - 1;
  if (context_.trace != nullptr) context_.trace->begin_step(dealt->step);
  rehearse_pass(dealt->samples.count / replicas());
  if (const std::int64_t steps = remote->local_steps(); steps > 0) {
    remote->push(take_local_steps(*dealt, steps));
  } else {
    remote->push(differentiate_for_servers(*dealt));
    engine_->skip();
  }
  progress_.step = dealt->step;
  return true;
}

StepBatch Trainer::batch_of(std::int64_t step, IndexRange samples) const {
  StepBatch batch;
  batch.step = step;
  batch.range = even_split(samples.count, replica(), replicas());
  batch.range.first += samples.first;
  batch.microbatches = build_microbatches(*dataset_, Split::kTrain, batch.range,
                                          recipe_.train.micro_batch_size, step);
  if (pads_microbatches()) {
    pad_with_empty_microbatches(
        batch.microbatches, static_cast<std::size_t>(most_microbatches(recipe_, samples.count)));
  }
  for (Microbatch& each : batch.microbatches) {
    batch.valid += each.valid;
    each = to_device(std::move(each), context_.device);
  }
  return batch;
}

std::int64_t Trainer::remote_steps() const {
  const auto settings = recipe_.sync.kind().servers(recipe_.sync.options());
  return settings ? std::max<std::int64_t>(1, settings->local_steps) : 1;
}

// The schedule goes on from one local step to the next: its warm-up is of as many steps of a run.
double Trainer::local_rate(std::int64_t step, std::int64_t index) const {
  const std::int64_t steps = remote_steps();
  OptimizerOptions optimizer = recipe_.optimizer;
  optimizer.warmup_steps *= steps;
  return learning_rate(optimizer, steps * recipe_.train.steps,
                       recipe_.train.global_batch_size / steps, steps * (step - 1) + index + 1);
}

RemoteUpdate Trainer::take_local_steps(const DealtSamples& dealt, std::int64_t steps) {
  RemoteUpdate all;
  all.skipped = "none of its steps was taken";
  for (std::int64_t i = 0; i < steps; ++i) {
    IndexRange samples = even_split(dealt.samples.count, i, steps);
    if (samples.count == 0) continue;
    samples.first += dealt.samples.first;
    const StepBatch batch = batch_of(dealt.step, samples);
    StepPart own;
    own.valid = batch.valid;
    StepMetrics metrics;
    metrics.learning_rate = local_rate(dealt.step, i);
    const StepSums sums = train_on(batch, own, metrics);
    if (!metrics.skipped.empty()) {
      if (sums.weight > 0) log_warning("a local step was skipped: " + metrics.skipped);
      continue;
    }
    all.skipped.clear();
    all.valid += sums.valid;
    all.loss += sums.loss;
    all.weight += sums.weight;
  }
  return all;
}

RemoteUpdate Trainer::differentiate_for_servers(const DealtSamples& dealt) {
  const StepBatch batch = batch_of(dealt.step, dealt.samples);
  RemoteUpdate update;
  const double scale = loss_scale();
  StepPart own;
  own.valid = batch.valid;
  const Updater updater = engine_->differentiate(
      {batch.microbatches, scale, own, context_.timeout, /*starts_norm=*/false});
  check(updater == Updater::kRemote, "an update that a server is to make");
  const StepSums sums = engine_->sums();
  update.loss = sums.loss;
  update.weight = sums.weight;
  update.valid = sums.valid;
  const double mean = 1 / (sums.weight > 0 ? sums.weight : 1);
  update.unscale = 1 / scale;
  update.mean = mean;
  update.norm = engine_->gradient_norm() * update.unscale * mean;
  if (sums.nonfinite_ranks.empty() && std::isfinite(update.norm)) {
    update.scale = mean * clip_factor(update.norm, recipe_.train.grad_clip);
    if (sums.weight == 0) update.skipped = "none of its targets counts";
  } else {
    update.skipped = reason_to_skip(sums, update.norm);  // or throws
  }
  update.learning_rate = learning_rate(recipe_.optimizer, recipe_.train.steps,
                                       recipe_.train.global_batch_size, dealt.step);
  return update;
}

StepMetrics Trainer::observe_step(RemoteView& view) {
  if (!view.is_open()) {
    const std::vector<NamedState> state = optimizer_->state();
    view.open({progress_.step, progress_.samples_consumed, progress_.updates, state});
  }
  if (note_query_) notes_ = note_query_();
  const RemoteStep remote = view.wait_for_step();
  check(remote.step == progress_.step + 1, "a step of the workers out of order");
  StepMetrics metrics;
  metrics.step = remote.step;
  metrics.loss = remote.loss / remote.weight;
  metrics.grad_norm = remote.norm;
  metrics.learning_rate = local_rate(remote.step, remote_steps() - 1);
  metrics.skipped = remote.skipped;
  metrics.extras.push_back({"workers", static_cast<double>(remote.workers)});
  metrics.extras.push_back({"updates", static_cast<double>(remote.updates)});
  if (remote.updates > 0) {
    metrics.extras.push_back({"staleness_mean", mean_value(remote.staleness)});
    metrics.extras.push_back(
        {"staleness_max", static_cast<double>(largest_value(remote.staleness))});
  }
  metrics.counts.push_back({"staleness", "update", remote.staleness});
  if (remote.lost_samples > 0) {
    metrics.extras.push_back({"lost_samples", static_cast<double>(remote.lost_samples)});
  }
  progress_.step = remote.step;
  progress_.samples_consumed += recipe_.train.global_batch_size;
  progress_.tokens += remote.valid;
  progress_.updates += remote.updates;
  metrics.tokens = progress_.tokens;
  metrics.step_seconds = remote.seconds;
  metrics.tokens_per_second = static_cast<double>(remote.valid) / metrics.step_seconds;
  return metrics;
}

}  // namespace troika
