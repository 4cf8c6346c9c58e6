#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/parallel/pipeline/step_engine.h>

#include <utility>

namespace troika {

StepPart StepEngine::reported(StepPart own) const {
  if (parts_.reports_loss) return own;
  own.loss = {};
  own.valid = 0;
  return own;
}

void StepEngine::sum_on_device() {
  if (parts_.arena.device().is_cpu() || parts_.arena.device().is_meta()) return;
  on_device_ = parts_.sync.sum_on_device(parts_.norm_sums.on_device());
}

Updater StepEngine::differentiate(const Microbatches& input) {
  timeout_ = input.timeout;
  norm_.reset();
  figures_.reset();
  parts_.sync.begin_step(static_cast<int>(input.microbatches.size()), input.timeout);
  const PipelineReport report = parts_.pipeline.train(
      input.microbatches, input.loss_scale, parts_.sync, input.timeout, [&](const LossTerms& loss) {
        StepPart own = input.own;
        own.loss = loss;
        parts_.sync.reduce(reported(std::move(own)));
      });
  peak_stage_activations_ = report.peak_stage_activations;
  const Updater updater = parts_.sync.finish();
  if (on_device_) {
    check(input.starts_norm && updater == Updater::kLocal, "a step that a device cannot sum up");
    figures_ = queue_figures(input.loss_scale);
  } else if (input.starts_norm && updater == Updater::kLocal) {
    norm_.emplace(parts_.arena);
  }
  return updater;
}

StepEngine::Figures StepEngine::queue_figures(double loss_scale) {
  Figures figures;
  figures.sums = parts_.sync.queue_sums();
  const at::Tensor norm = norm_on_device(parts_.arena, parts_.norm_sums);
  figures.scale = 1 / (figures.sums.weight * loss_scale);
  figures.norm = norm * figures.scale;
  figures.applies =
      figures.sums.loss.isfinite() & figures.norm.isfinite() & figures.sums.weight.ne(0);
  const at::Tensor all =
      at::cat({figures.sums.values, at::stack({norm, figures.applies.to(at::kDouble)})});
  figures.host = host_memory_for(all.device(), all);
  figures.host.copy_(all, /*non_blocking=*/true);
  figures.copied = DeviceEvent::record(all.device());
  return figures;
}

void StepEngine::queue_update(Optimizer& optimizer, StepInput input, double max_norm) {
  const at::Tensor factor = figures_->scale * clip_factor(figures_->norm, max_norm);
  input.device_scale = {factor, figures_->applies};
  optimizer.step(input);
  figures_->update_queued = true;
}

StepSums StepEngine::sums() {
  if (!figures_) return parts_.sync.sums();
  figures_->copied.wait(Deadline::in(timeout_), "the sums of a step");
  return parts_.sync.read_sums({figures_->host.const_data_ptr<double>(),
                                static_cast<std::size_t>(figures_->sums.values.numel())});
}

double StepEngine::gradient_norm() {
  if (figures_) return figure(2);
  if (!norm_) norm_.emplace(parts_.arena);
  const double norm = norm_->wait(parts_.norm_sums);
  norm_.reset();
  return norm;
}

double StepEngine::figure(std::int64_t from_end) const {
  return figures_->host.const_data_ptr<double>()[figures_->host.numel() - from_end];
}

void StepEngine::update(Optimizer& optimizer, const StepInput& input) {
  if (!figures_ || !figures_->update_queued) optimizer.step(input);
  end(true);
}

void StepEngine::end(bool applied) {
  if (figures_ && figures_->update_queued) {
    check(applied == (figure(1) != 0), "host and device disagree on whether an update applies");
  }
  parts_.sync.end_step(applied);
}

StepSums StepEngine::sum(const StepPart& own, std::string_view label) const {
  return parts_.sync.sum(reported(own), label);
}

}  // namespace troika
