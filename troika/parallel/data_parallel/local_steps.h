// Local SGD and DiLoCo for a torch::nn::Module of the user's own: ranks train on their own for some
// steps, and then exchange what they have changed (docs/loose-coupling.md).
//
//   Net net;
//   troika::LocalSteps sync(net, session, {.every_steps = 50, .outer_lr = 0.7, .outer_momentum =
//   0.9}); torch::optim::AdamW optimizer(net->parameters(), 1e-3);
//   ... loss(net(input), target).backward();  optimizer.step();  sync.step();
//
// Where several ranks are to act as one, DataParallel or ModulePipeline makes them so on the
// session inside of an island, and LocalSteps exchanges across islands (make_islands() in
// session/islands.h).
#pragma once

#include <troika/parallel/data_parallel/replica_tensors.h>
#include <troika/session/session.h>

#include <cstdint>
#include <memory>
#include <utility>

namespace troika {

struct LocalStepsOptions {
  int every_steps = 50;
  // An outer step of SGD with Nesterov's momentum towards the mean of the replicas: DiLoCo
  // (Douillard et al. 2023). Rate 1 without momentum is the mean: local SGD (Stich 2019).
  double outer_lr = 1;
  double outer_momentum = 0;
};

// All calls are collective over the ranks of the session, in the same order on each. Not thread
// safe. With x the parameters after the last exchange, p_i those of rank i, and w_i the weights
// given since, an exchange is
//
//   g = sum_i w_i (x - p_i) / sum_i w_i;  m = momentum m + g;  x -= lr (g + momentum m);  p_i = x
//
// Buffers of a floating-point type, such as running statistics, become their mean, without weights.
class LocalSteps {
 public:
  // Gives all ranks the parameters and buffers of rank 0. Throws UsageError on every rank where
  // modules differ in names, shapes or types, and for options that are out of range.
  LocalSteps(const std::shared_ptr<torch::nn::Module>& module, Session session,
             LocalStepsOptions options = {})
      : LocalSteps(ReplicaTensors::of(*module), std::move(session), options) {}
  LocalSteps(ReplicaTensors tensors, Session session, LocalStepsOptions options = {});
  // Takes a module holder, such as those of TORCH_MODULE.
  template <class Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
  LocalSteps(const Holder& module, Session session, LocalStepsOptions options = {})
      : LocalSteps(std::shared_ptr<torch::nn::Module>(module.ptr()), std::move(session), options) {}
  LocalSteps(LocalSteps&&) noexcept;
  LocalSteps& operator=(LocalSteps&&) noexcept;
  ~LocalSteps();

  // Counts a step of the optimiser, on targets of this weight, and exchanges where it is the last
  // of a round. Returns whether it did. Throws DeadlineError, PeerError.
  bool step(double weight = 1);
  // Exchanges now, such as before an evaluation or a checkpoint, and begins a round.
  void exchange();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troika
