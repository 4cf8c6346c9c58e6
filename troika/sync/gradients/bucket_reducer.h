// Reduces buckets of gradients over ranks while a backward pass is still making them. The hooks of
// units (GradientReducer) and autograd's hooks (parallel/data_parallel) are fronts of it.
//
// A bucket is all-reduced in place, or from ZeRO stage 1 on reduce-scattered into this rank's
// shard: one collective a bucket. It starts once all contributions to it are there. Buckets start
// in the order in which they are given, whatever the order in which they are complete: that may
// differ between ranks. A bucket without memory of its own (stage 2) borrows a buffer from its
// first contribution to the end of its reduction.
//
// A bucket may be reduced several times a step. It then starts as soon as it has the contributions
// of one reduction, each sum is added to this rank's shard, and the next contribution borrows
// memory anew. Ranks then have to contribute in the same order.
//
// Not thread safe. Collective: all ranks have the same buckets, and start them alike.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/time.h>
#include <troika/comm/group.h>
#include <troika/compress/bucket_hook.h>
#include <troika/sync/gradients/buffer_pool.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

struct ReducedBucket {
  std::string label;  // of its operations
  at::ScalarType dtype;
  std::int64_t elements = 0;
  // The gradients, one dimension, contiguous. Undefined while a bucket that borrows memory has
  // none.
  at::Tensor gradients = {};
  // The number of elements that each rank keeps, from stage 1 on, and the memory for this rank's
  // sums, which may be inside `gradients`.
  std::vector<std::int64_t> counts = {};
  at::Tensor shard = {};
  // The parameters, for hooks; may be empty.
  std::vector<BucketPart> parts = {};

  // Returns the sums that this rank keeps.
  [[nodiscard]] const at::Tensor& sums() const { return counts.empty() ? gradients : shard; }
};

class BucketReducer {
 public:
  // The producer of the gradients. Buckets are named by their places in the order.
  class Front {
   public:
    virtual ~Front() = default;
    // Directs the bucket's gradients to `gradients` from now on; its content is arbitrary, and the
    // first contribution to each parameter is to overwrite it. If undefined, the bucket's buffer
    // has been released.
    virtual void place_gradients(std::size_t bucket, const at::Tensor& gradients) = 0;
    // Fills in the gradients that no contribution has written, before the bucket is reduced. May
    // run collectives of its own.
    virtual void complete_gradients(std::size_t bucket) = 0;
  };

  struct Options {
    // The groups of a sum: first over `shard`, then over `replicate`.
    Group shard = {};
    Group replicate = {};
    ReduceOp op = ReduceOp::kSum;
    // Takes the place of the reduction at stage 0; may be null. Of a sum, its average is multiplied
    // by the group's size.
    std::shared_ptr<BucketHook> hook = {};
    Seconds timeout{60};           // for each operation
    at::Device device = at::kCPU;  // of the gradients
  };

  // Reduces `buckets`. `front` must outlive this.
  BucketReducer(std::vector<ReducedBucket> buckets, Front& front, Options options);
  BucketReducer(const BucketReducer&) = delete;
  BucketReducer& operator=(const BucketReducer&) = delete;

  [[nodiscard]] std::span<const ReducedBucket> buckets() const { return buckets_; }
  // Return the memory of the borrowed buffers, and their number.
  [[nodiscard]] std::int64_t buffer_bytes() const { return pool_.bytes(); }
  [[nodiscard]] std::size_t buffers() const { return pool_.count(); }

  // Sets the suffix of the label of every operation that is started from now on.
  void label_with(const std::string& suffix) { suffix_ = suffix; }
  // Returns the bucket's label, with `what` and that suffix.
  [[nodiscard]] std::string label_of(std::size_t bucket, std::string_view what = {}) const;
  void set_timeout(Seconds timeout) { options_.timeout = timeout; }
  // Makes buckets borrow without waiting: a buffer is only reused once its reduction has ended;
  // otherwise one more is made. For passes in which ranks wait for each other elsewhere.
  void borrow_without_waiting() { borrow_waits_ = false; }

  // What a step has for a bucket: a reduction starts after so many contributions, as often as said.
  // Several reductions are for stages 2 and 3, of a bucket that borrows its memory.
  struct Expected {
    int contributions = 0;
    int reductions = 1;
  };

  // Begins a step, in which no bucket is started yet.
  void begin_step(std::span<const Expected> expected);
  // Gives the bucket memory if it has none, before a contribution is written.
  void borrow_memory(std::size_t bucket);
  // Counts a contribution to the bucket.
  void add_contribution(std::size_t bucket);
  // Starts the buckets that have the contributions of a reduction: those of a step's only one where
  // they are next in the order, those of one among several at once.
  void start_complete();
  // Starts all buckets that have not been started.
  void start_rest();
  [[nodiscard]] bool all_started() const { return next_ == buckets_.size(); }
  // Returns whether the bucket's last reduction has been started.
  [[nodiscard]] bool is_started(std::size_t bucket) const { return progress_[bucket].started; }
  // Waits for all buckets; this rank's sums are then complete. Throws DeadlineError, PeerError.
  void wait();

  // Waits for the operations that have been started, and discards the step, which has failed.
  void abort();
  // Ends the step, for the hook; see BucketHook::end_step().
  void end_step(bool applied);
  // Calls `visit(bucket, memory)` for what the hook keeps of each bucket.
  template <class Visit>
  void for_each_memory(const Visit& visit) const {
    for (std::size_t i = 0; options_.hook && i < buckets_.size(); ++i) {
      if (buckets_[i].elements == 0) continue;
      if (BucketMemory* const memory = options_.hook->memory(
              hook_argument(i, {buckets_[i].label, Deadline::in(options_.timeout)}))) {
        visit(i, *memory);
      }
    }
  }

  // Settles the step as abort() does, and also drops the gradients added up in buffers since.
  void drop_gradients();

 private:
  struct Progress {
    Expected expected;
    int missing = 0;       // contributions to the next reduction
    int reductions = 0;    // started in this step
    bool started = false;  // the last of them
    at::Tensor sums;  // of the reduction under way, which belong to the shard's; else undefined
    Work work;
    at::Tensor buffer;  // borrowed
    std::string label;  // of the operation under way
  };
  void start(std::size_t bucket);
  [[nodiscard]] bool is_under_way(std::size_t bucket) const;
  // Returns the memory for the sums of the reduction that is next: the shard, or where an earlier
  // reduction's are there, the own part of the buffer.
  [[nodiscard]] at::Tensor sums_of_next(std::size_t bucket) const;
  // Labels an operation of the bucket that starts now, or goes on.
  [[nodiscard]] Call label_call(std::size_t bucket);
  [[nodiscard]] GradientBucket hook_argument(std::size_t bucket, const Call& call) const;
  // Waits for the reductions over the shard group that have been started, but for the last ones.
  // Starts those over the replicate group.
  void retire_all_but(std::size_t last);
  void retire(std::size_t bucket);
  // Waits for the bucket's operation.
  void wait_for_reduction(std::size_t bucket);
  // Releases the bucket's buffer, if it has one.
  void release_memory(std::size_t bucket);

  std::vector<ReducedBucket> buckets_;
  Front& front_;
  Options options_;
  std::vector<Progress> progress_;      // by bucket
  std::size_t next_ = 0;                // to start, in the order
  std::vector<std::size_t> under_way_;  // over the shard group, the oldest first
  BufferPool pool_;
  bool borrow_waits_ = true;
  std::string suffix_;
};

}  // namespace troika
