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

StepOutcome StepEngine::differentiate(const Microbatches& input) {
  parts_.sync.begin_step(static_cast<int>(input.microbatches.size()), input.timeout);
  const PipelineReport report = parts_.pipeline.train(
      input.microbatches, input.loss_scale, parts_.sync, input.timeout, [&](const LossTerms& loss) {
        StepPart own = input.own;
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
