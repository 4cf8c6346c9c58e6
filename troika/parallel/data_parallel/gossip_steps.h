// Gossip for a torch::nn::Module of the user's own: after each step a rank takes the mean of its
// parameters and those of one or two others, and never waits for all (docs/loose-coupling.md).
//
//   Net net;
//   troika::GossipSteps sync(net, session, {.topology = troika::Topology::kRing});
//   torch::optim::AdamW optimizer(net->parameters(), 1e-3);
//   ... loss(net(input), target).backward();  optimizer.step();  sync.step();
//   sync.average();   // before an evaluation or a checkpoint
//
// Where several ranks are to act as one, DataParallel or ModulePipeline makes them so on the
// session inside of an island, and GossipSteps exchanges across islands (make_islands() in
// session/islands.h).
#pragma once

#include <troika/parallel/data_parallel/replica_tensors.h>
#include <troika/session/session.h>
#include <troika/sync/gossip_peers.h>

#include <memory>
#include <utility>

namespace troika {

struct GossipStepsOptions {
  Topology topology = Topology::kExponential;
  // What is sent after a step is on its way during the next one; false: it is waited for.
  bool overlap = true;
};

// Each rank makes one, and calls step() as often as the others. Not thread safe. With x_i the
// parameters of rank i after its own update, and W the equal weights of a step's peers
// (gossip_peers()),
//
//   x_i = sum_j W_ij x_j                          without overlap
//   x_i(t+1) += sum_j W_ij x_j(t) - x_i(t)        with it
//
// Buffers of a floating-point type, such as running statistics, stay apart until average().
class GossipSteps {
 public:
  // Collective. Gives all ranks the parameters and buffers of rank 0. Throws UsageError on every
  // rank where modules differ in shapes or types.
  GossipSteps(const std::shared_ptr<torch::nn::Module>& module, Session session,
              GossipStepsOptions options = {})
      : GossipSteps(ReplicaTensors::of(*module), std::move(session), options) {}
  GossipSteps(ReplicaTensors tensors, Session session, GossipStepsOptions options = {});
  // Takes a module holder, such as those of TORCH_MODULE.
  template <class Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
  GossipSteps(const Holder& module, Session session, GossipStepsOptions options = {})
      : GossipSteps(std::shared_ptr<torch::nn::Module>(module.ptr()), std::move(session), options) {
  }
  GossipSteps(GossipSteps&&) noexcept;
  GossipSteps& operator=(GossipSteps&&) noexcept;
  ~GossipSteps();

  // Exchanges after a step of the optimiser. Throws DeadlineError, PeerError.
  void step();
  // Makes all ranks equal: each has the mean of all. Collective.
  void average();
  // Returns the root of the mean over ranks of |x_i - mean|^2, the consensus distance. Collective.
  [[nodiscard]] double distance();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troika
