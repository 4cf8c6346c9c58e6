// How the replicas of a model stay together. A step of training is
//
//   begin_step(); forward and backward passes with these hooks, and reduce() when the last loss is
//   there; finish(); the optimiser's step, if updates are local; end_step()
//
// Whoever trains knows no more of it than this: all-reduce with ZeRO is one kind
// (all_reduce_sync.h); local steps, gossip and servers are others.
#pragma once

#include <troika/nn/stage.h>
#include <troika/param/state_dict.h>
#include <troika/sync/step_sums.h>

#include <cstdint>
#include <string_view>

namespace troika {

// Who updates the parameters of which this rank holds shards.
enum class Updater { kLocal, kRemote };

// What a step has come to on the ranks that divide, clip and skip together.
struct StepOutcome {
  // kLocal: the gradients of the arena's shards are sums over these ranks, for the optimiser to
  // read. kRemote: another process updates, and they are not to be used.
  Updater updater = Updater::kLocal;
  StepSums sums;
};

// Collective among the ranks it keeps together, in the same order on each. Hooks of passes for
// evaluation may come between steps. Every call may throw DeadlineError, PeerError.
class ReplicaSync : public UnitHooks {
 public:
  // Begins a step in which every unit with parameters is going to be ready `microbatches` times on
  // this rank; none: its gradients count as zero. `timeout` is for each collective.
  virtual void begin_step(int microbatches, Seconds timeout) = 0;
  // Starts to add this rank's part of the step's sums to the others'. Once a step.
  virtual void reduce(const StepPart& own) = 0;
  // Waits for sums and gradients.
  [[nodiscard]] virtual StepOutcome finish() = 0;
  // Ends the step, always: `applied` says whether the optimiser has written shards. Values go where
  // they are needed next, without waiting for them.
  virtual void end_step(bool applied) = 0;
  // Shards were written outside of a step, by a file: as end_step(true).
  virtual void refresh() = 0;
  // Adds what it keeps from step to step to the state of a run, and takes it back. By default it
  // keeps nothing.
  virtual void save(StateDict& state) const;
  virtual void load(const StateDict& state);
  // Adds up the parts of an evaluation.
  [[nodiscard]] virtual StepSums sum(const StepPart& own, std::string_view label) const = 0;
};

}  // namespace troika
