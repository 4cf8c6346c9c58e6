// Sums gradients over the data axis while the backward pass is still going on. A bucket of the
// arena is reduced once all of its units are ready, so nothing is copied: by all-reduce, or from
// ZeRO stage 1 on by reduce-scatter into this rank's shard. Buckets start in one fixed order, from
// the last to the first, whatever the order in which units become ready: pipeline schedules may
// differ in that between ranks.
//
// One step of S gradient bytes puts on the wire what the engine's all-reduce, or reduce-scatter, of
// S bytes puts there (docs/engines.md), whatever the buckets.
#pragma once

#include <troika/comm/group.h>
#include <troika/param/arena.h>
#include <troika/sync/gradients/buffer_pool.h>
#include <troika/sync/gradients/coalesced_all_reduce.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troika {

// Groups whose ranks hold partial sums of some parameters, as ParameterSpec::partial_over says.
struct PartialGroups {
  Group tensor = {};
  // The first and the last pipeline stage, where they share a tied weight.
  Group embedding = {};
};

class GradientReducer {
 public:
  // Sums over the groups of `arena.sharding()`. Every rank of them must have the same layout.
  GradientReducer(Arena& arena, const PartialGroups& partial);

  // A new step, in which every unit with parameters is going to be ready `microbatches` times on
  // this rank (none: it has no microbatch in the step, and its gradients count as zero). `timeout`
  // is for each bucket.
  void begin_step(int microbatches, Seconds timeout);
  // Ends the label of every operation that is started from now on: ", microbatch 3 (stage 1)", or
  // nothing outside of a pass.
  void label_with(const std::string& pass) { pass_ = pass; }
  // Gives memory to the gradients that the unit contributes to, where they have none of their own.
  void prepare_gradients(int unit);
  // Starts the buckets whose turn it is once all of their units have been ready for the last time.
  void gradients_ready(int unit);
  // Starts what has not been started (parameters without a contribution count as zero) and waits
  // for all buckets. Then the gradients of the arena's shards are sums over the axis. Throws
  // DeadlineError or PeerError.
  void finish();

  [[nodiscard]] int buckets() const { return static_cast<int>(reductions_.size()); }
  // Positions in the arena's buckets, in the order in which they start.
  [[nodiscard]] std::vector<std::size_t> order() const;
  // Memory for gradients beside the arena's.
  [[nodiscard]] std::int64_t buffer_bytes() const;
  [[nodiscard]] std::size_t buffers() const { return pool_.count(); }

 private:
  struct BucketReduction {
    std::size_t bucket = 0;
    int contributors = 0;  // units
    int missing = 0;       // calls of gradients_ready() before it may start
    bool started = false;
    bool is_tied = false;  // starts in finish(), where the other stage comes to it, too
    at::Tensor memory;     // of its gradients, where it has a buffer
    std::string label;
    Work work;
    CoalescedAllReduce tensor_all_reduce;
    CoalescedAllReduce embedding_all_reduce;
  };
  [[nodiscard]] bool is_tied(std::size_t bucket, const PartialGroups& partial) const;
  void add_reduction(std::size_t bucket, const PartialGroups& partial);
  [[nodiscard]] const Bucket& bucket_of(const BucketReduction& reduction) const;
  void acquire_buffer(BucketReduction& reduction);
  void start(BucketReduction& reduction);
  // Waits for the sums over the shard group that have been started, but for the last few, and
  // starts those over the replicate group.
  void start_replica_reductions(std::size_t but_last);
  void reduce_over_replicas(BucketReduction& reduction);

  Arena& arena_;
  Group shard_;
  Group replicate_;
  Seconds timeout_{60};
  std::vector<BucketReduction> reductions_;  // in the order in which they start
  std::vector<std::size_t> reduction_of_;    // by bucket
  std::size_t next_ = 0;                     // to start
  std::size_t replica_reductions_started_ =
      0;  // those before it are past their sum over the shard group
  BufferPool pool_;
  std::string pass_;
};

}  // namespace troika
