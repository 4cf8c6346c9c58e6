// Reduces buckets of gradients over ranks while a backward pass is still making them. The hooks of
// units (GradientReducer) and autograd's hooks (parallel/data_parallel) are fronts of it.
//
// A bucket is all-reduced in place, or from ZeRO stage 1 on reduce-scattered into this rank's
// shard: one collective a bucket. It starts once all contributions to it are there. Buckets start
// in the order in which they are given, whatever the order in which they are complete: that may
// differ between ranks. A bucket without memory of its own (stage 2) borrows a buffer from its
// first contribution to the end of its reduction.
//
// Not thread safe. Collective: all ranks have the same buckets, and start them alike.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/time.h>
#include <troika/comm/group.h>
#include <troika/sync/gradients/bucket_hook.h>
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
  // One dimension, contiguous. Undefined while a bucket that borrows memory has none.
  at::Tensor gradients = {};
  // From stage 1 on: how many elements each rank keeps, and where this rank's sums go, which may be
  // inside `gradients`.
  std::vector<std::int64_t> counts = {};
  at::Tensor shard = {};

  // What this rank keeps of the sums.
  [[nodiscard]] const at::Tensor& sums() const { return counts.empty() ? gradients : shard; }
};

class BucketReducer {
 public:
  // Who makes the gradients. Buckets are named by their places in the order.
  class Front {
   public:
    virtual ~Front() = default;
    // The bucket's gradients go to `gradients` from now on, with whatever is in it; undefined: its
    // buffer has been taken back.
    virtual void place_gradients(std::size_t bucket, const at::Tensor& gradients) = 0;
    // The bucket is about to be reduced: fills in what no contribution has written. May run
    // collectives of its own.
    virtual void complete_gradients(std::size_t bucket) = 0;
  };

  struct Options {
    // A sum is taken over this group first, and then over `replicate`.
    Group shard = {};
    Group replicate = {};
    ReduceOp op = ReduceOp::kSum;
    // Takes the place of the reduction at stage 0; may be null.
    std::shared_ptr<BucketHook> hook = {};
    Seconds timeout{60};  // for each operation
  };

  // `front` must outlive this.
  BucketReducer(std::vector<ReducedBucket> buckets, Front& front, Options options);
  BucketReducer(const BucketReducer&) = delete;
  BucketReducer& operator=(const BucketReducer&) = delete;

  [[nodiscard]] std::span<const ReducedBucket> buckets() const { return buckets_; }
  // Memory of the buffers that have been borrowed, and how many there are.
  [[nodiscard]] std::int64_t buffer_bytes() const { return pool_.bytes(); }
  [[nodiscard]] std::size_t buffers() const { return pool_.count(); }

  // Ends the label of every operation that is started from now on.
  void label_with(const std::string& suffix) { suffix_ = suffix; }
  // The bucket's label, with `what` and that suffix.
  [[nodiscard]] std::string label_of(std::size_t bucket, std::string_view what = {}) const;
  void set_timeout(Seconds timeout) { options_.timeout = timeout; }
  // A buffer is only taken back where its reduction has ended already; else there is one more of
  // them. For passes in which ranks wait for each other elsewhere.
  void borrow_without_waiting() { borrow_waits_ = false; }

  // Nothing is started; a bucket starts after so many contributions.
  void begin_step(std::span<const int> contributions);
  // Gives the bucket memory if it has none: a contribution is about to be written.
  void borrow_memory(std::size_t bucket);
  // A contribution has been made.
  void add_contribution(std::size_t bucket);
  // Starts the buckets whose turn it is and whose contributions are all there.
  void start_complete();
  // Starts all that have not been started.
  void start_rest();
  [[nodiscard]] bool all_started() const { return next_ == buckets_.size(); }
  [[nodiscard]] bool is_started(std::size_t bucket) const { return progress_[bucket].started; }
  // Waits for all buckets: this rank's sums are whole then. Throws DeadlineError, PeerError.
  void wait();

  // Waits for what has been started, and gives it up: the step has failed.
  void abort();
  // The same, with what has been added up in buffers since.
  void drop_gradients();

 private:
  struct Progress {
    int missing = 0;  // contributions
    bool started = false;
    bool retired = false;  // its sum over the shard group is there
    Work work;
    at::Tensor buffer;  // borrowed
    std::string label;  // of the operation under way
  };
  void start(std::size_t bucket);
  // Of an operation of the bucket that starts now, or goes on.
  [[nodiscard]] Call label_call(std::size_t bucket);
  [[nodiscard]] GradientBucket hook_argument(std::size_t bucket);
  // Waits for the reductions over the shard group that have been started, but for the last ones,
  // and starts those over the replicate group.
  void retire_all_but(std::size_t last);
  void retire(std::size_t bucket);
  // Waits for the bucket's operation and takes its buffer back.
  void settle(std::size_t bucket);

  std::vector<ReducedBucket> buckets_;
  Front& front_;
  Options options_;
  std::vector<Progress> progress_;  // by bucket
  std::size_t next_ = 0;            // to start
  BufferPool pool_;
  bool borrow_waits_ = true;
  std::string suffix_;
};

}  // namespace troika
