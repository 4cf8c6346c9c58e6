#include <troika/optim/gradient_norm.h>
#include <troika/parallel/pipeline/step_engine.h>

#include <utility>

namespace troika {

StepPart StepEngine::told(StepPart own) const {
  if (parts_.tells_loss) return own;
  own.loss = {};
  own.valid = 0;
  return own;
}

StepOutcome StepEngine::differentiate(const Work& work) {
  parts_.sync.begin_step(static_cast<int>(work.microbatches.size()), work.timeout);
  const PipelineReport report = parts_.pipeline.train(
      work.microbatches, work.loss_scale, parts_.sync, work.timeout, [&](const LossTerms& loss) {
        StepPart own = work.own;
        own.loss = loss;
        parts_.sync.reduce(told(std::move(own)));
      });
  peak_stage_activations_ = report.peak_stage_activations;
  return parts_.sync.finish();
}

double StepEngine::gradient_norm() const {
  return global_norm(parts_.arena, parts_.norm_sums);
}

void StepEngine::update(Optimizer& optimizer, const StepInput& input) {
  optimizer.step(input);
  parts_.sync.end_step(true);
}

StepSums StepEngine::sum(const StepPart& own, std::string_view label) const {
  return parts_.sync.sum(told(own), label);
}

}  // namespace troika
