// How the replicas of a model stay together. A step of training is
//
//   begin_step(); forward and backward passes with these hooks, and reduce() when the last loss is
//   there; finish(); the optimiser's step, if updates are local; end_step()
//
// A trainer knows no more of it than this: all-reduce with ZeRO is one kind
// (all_reduce_sync.h); local steps, gossip and servers are others.
#pragma once

#include <troika/nn/stage.h>
#include <troika/param/state_dict.h>
#include <troika/sync/step_sums.h>

#include <cstdint>
#include <string_view>

namespace troika {

// The process that updates the parameters of the shards on this rank.
enum class Updater { kLocal, kRemote };

// The outcome of a step on the ranks that divide, clip and skip together.
struct StepOutcome {
  // If kLocal, the gradients of the arena's shards are sums over these ranks, for the optimiser to
  // read. If kRemote, another process updates, and they must not be used.
  Updater updater = Updater::kLocal;
  StepSums sums;
};

// Keeps the replicas equal. Collective among their ranks, in the same order on each. Hooks of
// passes for evaluation may come between steps. Every call may throw DeadlineError, PeerError.
class ReplicaSync : public UnitHooks {
 public:
  // Begins a step in which every unit with parameters becomes ready `microbatches` times on this
  // rank. If zero, its gradients count as zero. `timeout` is for each collective.
  virtual void begin_step(int microbatches, Seconds timeout) = 0;
  // Starts to add this rank's part of the step's sums to the others'. Call once a step.
  virtual void reduce(const StepPart& own) = 0;
  // Waits for sums and gradients.
  [[nodiscard]] virtual StepOutcome finish() = 0;
  // Ends the step, in every case. `applied` says whether the optimiser has written shards. Starts
  // to send values to the ranks that need them next, without waiting for them.
  virtual void end_step(bool applied) = 0;
  // Announces that a file has overwritten shards outside of a step; otherwise as end_step(true).
  virtual void refresh() = 0;
  // Add the state that it keeps from step to step to the state of a run, and load it back: before
  // the loaded values are published, with refresh() to follow. By default there is none.
  virtual void save(StateDict& state) const;
  virtual void load(const StateDict& state);
  // Returns the smallest `own` of the ranks that divide, clip and skip together.
  [[nodiscard]] virtual std::int64_t smallest(std::int64_t own, std::string_view label) const = 0;
  // Adds up the parts of an evaluation.
  [[nodiscard]] virtual StepSums sum(const StepPart& own, std::string_view label) const = 0;
};

}  // namespace troika
