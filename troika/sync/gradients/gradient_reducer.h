// Sums the gradients of an arena's buckets over the data axis as units become ready: the front of
// BucketReducer for the hooks of units. Nothing is copied: a bucket is a slice of the arena, or at
// stage 2 a buffer. Buckets start from the last to the first. Buckets of frozen parameters have no
// gradients and take no part.
//
// One step of S gradient bytes puts on the wire what the engine's all-reduce, or reduce-scatter, of
// S bytes puts there (docs/engines.md), whatever the buckets.
#pragma once

#include <troika/comm/group.h>
#include <troika/param/arena.h>
#include <troika/sync/gradients/bucket_reducer.h>
#include <troika/sync/gradients/coalesced_all_reduce.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troika {

// The groups whose ranks hold partial sums of some parameters, as ParameterSpec::partial_over says.
struct PartialGroups {
  Group tensor = {};
  // The first and the last pipeline stage, where they share a tied weight.
  Group embedding = {};
};

class GradientReducer final : private BucketReducer::Front {
 public:
  // Sums over the groups of `arena.sharding()`. Every rank of them must have the same layout.
  // A hook takes the place of the reduction at stage 0; it averages.
  GradientReducer(Arena& arena, const PartialGroups& partial,
                  std::shared_ptr<BucketHook> hook = nullptr);

  // Begins a step, in which every unit with trained parameters becomes ready `microbatches` times
  // on this rank. If zero, the rank has no microbatch in the step, and its gradients count as zero.
  // Where gradients are cut after each microbatch, all ranks have equally many. `timeout` is for
  // each bucket.
  void begin_step(int microbatches, Seconds timeout);
  // Ends the label of every operation that is started from now on: ", microbatch 3 (stage 1)", or
  // empty outside of a pass.
  void label_with(const std::string& pass) { reducer_.label_with(pass); }
  // Gives memory to the gradients that the unit contributes to, where they have none of their own.
  void prepare_gradients(int unit);
  // Starts the buckets that are next in the order, once all of their units have been ready for the
  // last time.
  void gradients_ready(int unit);
  // Starts the remaining buckets (parameters without a contribution count as zero) and waits for
  // all. The gradients of the arena's shards are then sums over the axis. Throws DeadlineError or
  // PeerError.
  void finish();

  // Ends the step, for the hook.
  void end_step(bool applied) { reducer_.end_step(applied); }
  // Calls `visit(parameter, part, memory, i)` for each parameter, by its place in
  // Arena::parameters(), where the hook keeps anything: it is the i-th part of a bucket.
  template <class Visit>
  void for_each_memory(const Visit& visit) const {
    reducer_.for_each_memory([&](std::size_t bucket, BucketMemory& memory) {
      const std::vector<BucketPart>& parts = reducer_.buckets()[bucket].parts;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        visit(bounds_of(bucket).first_parameter + i, parts[i], memory, i);
      }
    });
  }

  [[nodiscard]] int buckets() const { return static_cast<int>(buckets_.size()); }
  // Returns positions in the arena's buckets, in the order in which they start.
  [[nodiscard]] std::vector<std::size_t> order() const;
  // Returns the memory for gradients beside the arena's.
  [[nodiscard]] std::int64_t buffer_bytes() const;
  [[nodiscard]] std::size_t buffers() const { return reducer_.buffers(); }

 private:
  // A bucket of the arena, with its operations beside the reduction over the data axis.
  struct ArenaBucket {
    std::size_t bucket = 0;  // in the arena's
    int contributors = 0;    // units
    bool is_tied = false;    // starts in finish(), where the other stage comes to it, too
    CoalescedAllReduce tensor_all_reduce;
    CoalescedAllReduce embedding_all_reduce;
  };
  void place_gradients(std::size_t bucket, const at::Tensor& gradients) override;
  void complete_gradients(std::size_t bucket) override;
  [[nodiscard]] std::vector<ArenaBucket> order_buckets(const PartialGroups& partial) const;
  [[nodiscard]] std::vector<ReducedBucket> reduced_buckets() const;
  [[nodiscard]] const Bucket& bounds_of(std::size_t bucket) const;

  Arena& arena_;
  Seconds timeout_{60};
  std::vector<ArenaBucket> buckets_;      // in the order in which they start, as in all below
  std::vector<std::size_t> position_of_;  // by bucket of the arena
  std::vector<BucketReducer::Expected> expected_;  // in this step
  BucketReducer reducer_;
};

}  // namespace troika
