// Dynamic loss scaling for fp16 in a training loop of the user's own, on any number of ranks: what
// torch.amp.GradScaler is in Python. The loss is multiplied by a scale, so that small gradients
// survive fp16, and gradients are divided by it before the optimiser's step. A step whose gradients
// are not finite on any rank is left out on all of them.
//
//   troika::GradScaler scaler(model);                       // a DataParallel, or a Session
//   optimizer.zero_grad();
//   torch::Tensor loss;
//   {
//     const troika::Autocast autocast(at::kHalf);
//     loss = criterion(model(input), target);
//   }
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);                             // only to clip or read gradients
//   optimizer.clip_grad_norm(1.0);
//   scaler.step(optimizer);
//   scaler.update();
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/optim/dynamic_scale.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/session/session.h>

#include <vector>

namespace torch::optim {
class Optimizer;
}
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace troika {

using GradScalerOptions = DynamicScaleOptions;

// Scales one training loop: its models, optimisers and losses. All ranks make the same calls in the
// same order. Not thread safe. Where options.enabled is false, step() is the optimiser's, and the
// other calls do nothing.
class GradScaler {
 public:
  using State = DynamicScale::State;

  // Scales the loop of `model`, whose ranks then need the optimiser's step in join(), too. Throws
  // UsageError naming a parameter that is fp16: its gradients would overflow by themselves.
  explicit GradScaler(Replica& model, const GradScalerOptions& options = {});
  // Scales a loop of several models, or of a process alone, on the ranks of `session`.
  explicit GradScaler(Session session, const GradScalerOptions& options = {});

  // Returns `loss` times the scale. Call for each loss of a step, before the first unscale_().
  // Losses of accumulated passes have the same scale. It changes in update() alone.
  [[nodiscard]] at::Tensor scale(const at::Tensor& loss);

  // Divides the gradients of the optimiser's parameters by the scale, once a step: after the last
  // backward pass, and before gradients are clipped or read. step() does it where this was not
  // called. Not collective; waits for no device. Throws UsageError for fp16 or sparse gradients, a
  // second call before update(), and a call after step().
  void unscale_(torch::optim::Optimizer& optimizer);

  // Collective: takes the optimiser's step if its gradients are finite on all ranks; returns
  // whether it has. The device is waited for once, to read what this rank has found; one all-reduce
  // of a few numbers of the host carries what ranks have found. Throws UsageError on all ranks if
  // there are no gradients, if no loss was scaled since update(), or if ranks have different
  // scales; nothing has then changed but gradients. Throws DeadlineError, PeerError.
  bool step(torch::optim::Optimizer& optimizer);

  // Ends a training step, after the steps of all its optimisers: lowers the scale if the gradients
  // of any were not finite, else counts towards its growth. Collective only for an optimiser that
  // had unscale_() and no step(). Throws NonFiniteError on all ranks below the minimum, and
  // UsageError if there was no step().
  void update();

  // Returns the scale; 1 if the scaler is not enabled.
  [[nodiscard]] double scale_value() const { return rule_.scale(); }
  // Return and take what a checkpoint keeps, the same on all ranks. load() throws DataError where
  // it is not possible. Between steps only. torch::save(scaler, path) and torch::load do the same.
  [[nodiscard]] State state() const { return rule_.state(); }
  void load(const State& state) { rule_.load(state); }

 private:
  // An optimiser in the current training step.
  struct Entry {
    const torch::optim::Optimizer* optimizer;
    at::Tensor found;  // 1 where this rank's gradients are not finite; on their device
    bool resolved;     // ranks know of each other
    bool overflowed;   // any rank's were not finite; once it is resolved
  };
  [[nodiscard]] Entry* find(const torch::optim::Optimizer& optimizer);
  Entry& unscale(const torch::optim::Optimizer& optimizer);
  void forget(const torch::optim::Optimizer& optimizer);
  enum class Gradients { kHere, kMissing };
  void resolve(Entry& entry, Gradients gradients);
  void throw_because_scales_differ() const;

  Session session_;
  DynamicScale rule_;
  std::vector<Entry> entries_;
  bool scaled_ = false;  // a loss, since the last update()
};

// For torch::save and torch::load. Reading throws DataError if the file is of something else.
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const GradScaler& scaler);
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           GradScaler& scaler);

}  // namespace troika
