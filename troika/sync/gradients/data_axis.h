// Everything that a training step has to do with the data axis, for the recipe's models: the hooks
// that gather values ahead of use and reduce gradients as they become ready, at every stage of ZeRO
// (docs/zero.md). A step is
//
//   begin_step(); forward and backward passes with these hooks; finish();
//   the optimiser's step; after_update()
//
// Passes for evaluation use the same hooks, outside steps. Collective: all ranks of the data axis
// call the same in the same order; at stage 3 that goes for every hook.
#pragma once

#include <troika/nn/stage.h>
#include <troika/sync/gradients/gradient_reducer.h>
#include <troika/sync/gradients/parameter_gatherer.h>

#include <memory>
#include <string>

namespace troika {

class DataAxis final : public UnitHooks {
 public:
  // Reduces and gathers over the groups of `arena.sharding()`, and `partial`. `timeout` is for each
  // collective.
  // A hook takes the place of the reduction at stage 0.
  explicit DataAxis(Arena& arena, const PartialGroups& partial = {}, Seconds timeout = Seconds(60),
                    std::shared_ptr<BucketHook> hook = nullptr);

  // Begins a step, in which every unit with trained parameters becomes ready `microbatches` times
  // on this rank. If zero, the rank has no microbatch in the step, and its gradients count as zero.
  void begin_step(int microbatches, Seconds timeout);
  // Waits for the sums over the data axis. The gradients of Arena::trained_shards() are then
  // complete, and own values may be written. Throws DeadlineError, PeerError.
  void finish();
  // Ends the step, for the hook.
  void end_step(bool applied) { reducer_.end_step(applied); }
  // Gathers own values that the optimiser has changed, without waiting for them.
  void after_update();
  // Gathers all own values, frozen ones too, which a file has changed, without waiting for them.
  void refresh();

  void begin_pass(int microbatch, int stage) override;
  void unshard(int unit, Direction direction) override;
  void reshard(int unit) override;
  void prepare_gradients(int unit) override;
  void gradients_ready(int unit) override;

  // Returns the bytes of memory beside the arena's.
  [[nodiscard]] std::int64_t buffer_bytes() const {
    return reducer_.buffer_bytes() + gatherer_.buffer_bytes();
  }
  [[nodiscard]] const GradientReducer& reducer() const { return reducer_; }
  [[nodiscard]] const ParameterGatherer& gatherer() const { return gatherer_; }

 private:
  void label_with(const std::string& pass);

  GradientReducer reducer_;
  ParameterGatherer gatherer_;
};

}  // namespace troika
