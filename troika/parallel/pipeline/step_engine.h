// One step of training, for recipes, for modules of the user's own and for the C interface: passes,
// the reduction, and the update, in the order that overlaps them. Where ranks can add up on their
// device, the update is queued there with the rest of the step, and the host reads loss, norm and
// whether the update applies at once, behind it.
#pragma once

#include <troika/optim/gradient_norm.h>
#include <troika/optim/optimizer.h>
#include <troika/parallel/pipeline/executor.h>
#include <troika/sync/replica_sync.h>

#include <optional>
#include <span>

namespace troika {

class StepEngine {
 public:
  // The parts of the engine; all must outlive it. With `reports_loss` this rank's loss counts in
  // the sums. Set it on one rank of each tensor axis.
  struct Parts {
    PipelineExecutor& pipeline;
    ReplicaSync& sync;
    const Arena& arena;
    const ParameterSums& norm_sums;
    bool reports_loss = true;
  };
  explicit StepEngine(Parts parts) : parts_(parts) {}

  struct Microbatches {
    std::span<const Microbatch> microbatches;
    double loss_scale = 1;
    // The contribution of this rank; differentiate() fills in the loss.
    StepPart own = {};
    Seconds timeout = Seconds(60);
    // Set if gradient_norm() follows, and nothing changes gradients before.
    bool starts_norm = false;
  };
  // Collective: from the next step on the device makes sums and norm, where all groups carry its
  // tensors. All steps then set `starts_norm`. Does nothing on the host.
  void sum_on_device();

  // Collective: runs the passes. A device is given all that it has to do, and the host waits for
  // no value of it.
  [[nodiscard]] Updater differentiate(const Microbatches& input);
  // Returns whether queue_update() may follow, in a step that it updates here.
  [[nodiscard]] bool can_queue_update(const Optimizer& optimizer) const {
    return figures_.has_value() && optimizer.takes_device_scale();
  }
  // Queues the update before the host has read what it takes: gradients over the weight of the step
  // and the loss scale, clipped to `max_norm`. It applies if losses and norm are finite, no rank
  // has refused its input, and the weight is not zero. Otherwise it changes no bit.
  // `input.gradient_scale` is not used.
  void queue_update(Optimizer& optimizer, StepInput input, double max_norm);
  // Collective: waits for the sums of losses. Call once a step.
  [[nodiscard]] StepSums sums();
  // Collective: returns the norm of the summed gradients over the model. Call it after sums().
  [[nodiscard]] double gradient_norm();
  // Collective: has the optimiser update this rank's shards, unless that is queued, and ends the
  // step. Throws InternalError if the queued one did not apply.
  void update(Optimizer& optimizer, const StepInput& input);
  // Collective: ends the step without an update. Throws InternalError if a queued one applied.
  void skip() { end(false); }
  // Collective: adds up the parts of an evaluation.
  [[nodiscard]] StepSums sum(const StepPart& own, std::string_view label) const;

  [[nodiscard]] int peak_stage_activations() const { return peak_stage_activations_; }

 private:
  // Returns `own`, without its loss and targets if another rank reports them already.
  [[nodiscard]] StepPart reported(StepPart own) const;

  // The figures of a step, on the device and on its way to the host.
  struct Figures {
    DeviceSums sums;
    at::Tensor scale, norm;  // numbers in fp64: 1 / (weight x loss scale), the norm with that scale
    at::Tensor applies;      // bool
    at::Tensor host;         // fp64: the sums, the norm without a scale, whether it applies
    DeviceEvent copied;
    bool update_queued = false;
  };
  [[nodiscard]] Figures queue_figures(double loss_scale);
  // Returns the number that is `from_end` places from the end, once it has been waited for.
  [[nodiscard]] double figure(std::int64_t from_end) const;
  void end(bool applied);

  Parts parts_;
  bool on_device_ = false;
  Seconds timeout_{60};
  std::optional<GradientNorm> norm_;  // under way, through the host
  std::optional<Figures> figures_;    // of a step on the device
  int peak_stage_activations_ = 0;
};

}  // namespace troika
