// Sums gradients over the data axis while the backward pass is still going on. A block of the arena
// is reduced once all of its units are ready, so nothing is copied: by all-reduce, or from ZeRO
// stage 1 on by reduce-scatter into this rank's shard. Blocks start in one fixed order, from the
// last to the first, whatever the order in which units become ready: pipeline schedules may differ
// in that between ranks.
//
// One step of S gradient bytes puts on the wire what the engine's all-reduce, or reduce-scatter, of
// S bytes puts there (docs/engines.md), whatever the blocks.
#pragma once

#include <troika/comm/group.h>
#include <troika/parallel/data/buffer_pool.h>
#include <troika/parallel/data/packed_sum.h>
#include <troika/param/arena.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troika {

// Groups whose ranks hold partial sums of some parameters, as ParameterSpec::partial_over says.
struct PartialGroups {
  Group tensor = {};
  // The first and the last pipeline stage, where they share a tied weight.
  Group tie = {};
};

class GradientReducer {
 public:
  // Sums over the groups of `arena.sharding()`. Every rank of them must have the same layout.
  GradientReducer(Arena& arena, const PartialGroups& partial);

  // A new step, in which every unit with parameters is going to be ready `microbatches` times on
  // this rank (none: it has no share in the step, and its gradients count as zero). `timeout` is
  // for each block.
  void begin_step(int microbatches, Seconds timeout);
  // Ends the label of every operation that is started from now on: ", microbatch 3 (stage 1)", or
  // nothing outside of a pass.
  void label_with(const std::string& pass) { pass_ = pass; }
  // Gives memory to the gradients that the unit contributes to, where they have none of their own.
  void need_gradients(int unit);
  // Starts the blocks whose turn it is once all of their units have been ready for the last time.
  void unit_ready(int unit);
  // Starts what has not been started (parameters without a contribution count as zero) and waits
  // for all blocks. Then the gradients of the arena's pieces are sums over the axis. Throws
  // DeadlineError or PeerError.
  void finish();

  [[nodiscard]] int blocks() const { return static_cast<int>(buckets_.size()); }
  // Positions in the arena's blocks, in the order in which they start.
  [[nodiscard]] std::vector<std::size_t> order() const;
  // Memory for gradients beside the arena's.
  [[nodiscard]] std::int64_t buffer_bytes() const;
  [[nodiscard]] std::size_t buffers() const { return pool_.count(); }

 private:
  struct Bucket {
    std::size_t block = 0;
    int contributors = 0;  // units
    int missing = 0;       // calls of unit_ready() before it may start
    bool started = false;
    bool is_tied = false;  // starts in finish(), where the other stage comes to it, too
    at::Tensor memory;     // of its gradients, where it is lent
    std::string label;
    Work work;
    PackedSum tensor_sum;
    PackedSum tie_sum;
  };
  [[nodiscard]] bool is_tied(std::size_t block, const PartialGroups& partial) const;
  void add_bucket(std::size_t block, const PartialGroups& partial);
  [[nodiscard]] const Block& block_of(const Bucket& bucket) const;
  void lend(Bucket& bucket);
  void start(Bucket& bucket);
  // Waits for the sums over the shard group that have been started, but for the last few, and
  // starts those over the replicate group.
  void follow_up(std::size_t but_last);
  void replicate(Bucket& bucket);

  Arena& arena_;
  Group shard_;
  Group replicate_;
  Seconds timeout_{60};
  std::vector<Bucket> buckets_;         // in the order in which they start
  std::vector<std::size_t> bucket_of_;  // by block
  std::size_t next_ = 0;                // to start
  std::size_t followed_ = 0;            // those before it are past their sum over the shard group
  BufferPool pool_;
  std::string pass_;
};

}  // namespace troika
