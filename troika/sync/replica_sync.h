// How the replicas of a model stay together. A step of training is
//
//   begin_step(); forward and backward passes with these hooks, and reduce() when the last loss is
//   there; finish(); sums(); the optimiser's step, if updates are local; end_step()
//
// A trainer knows no more of it than this: all-reduce with ZeRO is one kind
// (all_reduce_sync.h); local steps, gossip and servers are others.
#pragma once

#include <troika/nn/stage.h>
#include <troika/param/state_dict.h>
#include <troika/sync/remote.h>
#include <troika/sync/step_sums.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace troika {

// Several replicas of a model whose parameters may differ, and which of them is this rank's.
struct Replicas {
  int index = 0;
  int count = 1;
};

// Returns whether a saved state has a tensor.
using HasTensor = std::function<bool(const std::string& name)>;

// The process that updates the parameters of the shards on this rank.
enum class Updater { kLocal, kRemote };

// Keeps the replicas equal. Collective among their ranks, in the same order on each. Hooks of
// passes for evaluation may come between steps. Every call may throw DeadlineError, PeerError.
class ReplicaSync : public UnitHooks {
 public:
  // Begins a step in which every unit with parameters becomes ready `microbatches` times on this
  // rank. If zero, its gradients count as zero. `timeout` is for each collective.
  virtual void begin_step(int microbatches, Seconds timeout) = 0;
  // Starts to add this rank's part of the step's sums to the others'. Call once a step.
  virtual void reduce(const StepPart& own) = 0;
  // Waits for the gradients; on a device its current stream waits. If kLocal, those of the arena's
  // shards are sums over the ranks that divide, clip and skip together, for the optimiser to read.
  // If kRemote, another process updates, and they must not be used.
  [[nodiscard]] virtual Updater finish() = 0;
  // Waits for the sums over the same ranks. Call once a step, after finish().
  [[nodiscard]] virtual StepSums sums() = 0;
  // Collective: from the next step on the model's device makes the sums, if `wanted` on every rank
  // and their groups carry its tensors. Returns whether it does; queue_sums() then takes the place
  // of sums(), and updates are local. By default it does not.
  virtual bool sum_on_device(bool wanted);
  // Queues the sums. Call once a step, after finish().
  [[nodiscard]] virtual DeviceSums queue_sums();
  // Returns what DeviceSums::values say, once they are in the host's memory.
  [[nodiscard]] virtual StepSums read_sums(std::span<const double> values) const;
  // Ends the step, in every case. `applied` says whether the optimiser has written shards. Starts
  // to send values to the ranks that need them next, without waiting for them.
  virtual void end_step(bool applied) = 0;
  // Announces that a file has overwritten shards outside of a step; otherwise as end_step(true).
  virtual void refresh() = 0;
  // Add the state that it keeps from step to step to the state of a run, and load it back: before
  // the loaded values are published, with refresh() to follow. By default there is none.
  // add_places() adds the tensors that load() goes on from, of those that a saved state has, for
  // values to be written to.
  virtual void save(StateDict& state) const;
  virtual void add_places(StateDict& state, const HasTensor& has) const;
  virtual void load(const StateDict& state);
  // Returns whether a saved state has what each of these replicas had of its own, so that it goes
  // on from that; elsewhere all go on from their mean.
  [[nodiscard]] virtual bool goes_on_apart(const HasTensor&) const { return false; }
  // Return the replicas that differ; and, collectively over them, make `values`, contiguous, their
  // mean, where each has values of its own. Over a slow link a call takes as long as a message is
  // on its way: put several tensors into one (FlatCopies).
  [[nodiscard]] virtual Replicas replicas() const { return {}; }
  virtual void average(const at::Tensor& values) const;
  // Returns the smallest `own` of the ranks that divide, clip and skip together.
  [[nodiscard]] virtual std::int64_t smallest(std::int64_t own, std::string_view label) const = 0;
  // Adds up the parts of an evaluation.
  [[nodiscard]] virtual StepSums sum(const StepPart& own, std::string_view label) const = 0;
  // Return what there is besides where parameters lie on servers, and this process trains for them,
  // or looks on; null elsewhere.
  [[nodiscard]] virtual RemoteWork* work() { return nullptr; }
  [[nodiscard]] virtual RemoteView* view() { return nullptr; }
  // Returns whether all replicas had the same parameters when the last step ended: they act as one,
  // or have just taken their mean.
  [[nodiscard]] virtual bool are_replicas_equal() const { return replicas().count == 1; }
};

}  // namespace troika
