// One step of training, for recipes, for modules of the user's own and for the C interface: passes,
// the reduction, and the update, in the order that overlaps them.
#pragma once

#include <troika/optim/optimizer.h>
#include <troika/parallel/pipeline/executor.h>
#include <troika/sync/replica_sync.h>

#include <span>

namespace troika {

class StepEngine {
 public:
  // The parts of the engine; all must outlive it. With `tells_loss` this rank's loss counts in the
  // sums. Set it on one rank of each tensor axis.
  struct Parts {
    PipelineExecutor& pipeline;
    ReplicaSync& sync;
    const Arena& arena;
    const ParameterSums& norm_sums;
    bool tells_loss = true;
  };
  explicit StepEngine(Parts parts) : parts_(parts) {}

  struct Microbatches {
    std::span<const Microbatch> microbatches;
    double loss_scale = 1;
    // The contribution of this rank; differentiate() fills in the loss.
    StepPart own = {};
    Seconds timeout = Seconds(60);
  };
  // Collective: runs the passes and waits for the sums of losses and gradients.
  [[nodiscard]] StepOutcome differentiate(const Microbatches& input);
  // Collective: returns the norm of the summed gradients over the model.
  [[nodiscard]] double gradient_norm() const;
  // Collective: has the optimiser update this rank's shards, and ends the step.
  void update(Optimizer& optimizer, const StepInput& input);
  // Collective: ends the step without an update.
  void skip() { parts_.sync.end_step(false); }
  // Collective: adds up the parts of an evaluation.
  [[nodiscard]] StepSums sum(const StepPart& own, std::string_view label) const;

  [[nodiscard]] int peak_stage_activations() const { return peak_stage_activations_; }

 private:
  // Returns `own`, without its loss and targets if another rank reports them already.
  [[nodiscard]] StepPart told(StepPart own) const;

  Parts parts_;
  int peak_stage_activations_ = 0;
};

}  // namespace troika
