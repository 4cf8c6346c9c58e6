// Internal. Where the gradients of a module's parameters lie: in buckets, each a slice of one arena
// that peers can read. A bucket is of one dtype. With ZeRO (docs/zero.md) values lie in buckets,
// too, and each rank keeps its own shard of every bucket; at stage 2 a bucket has no memory for
// whole gradients of its own. BucketReducer reduces them.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/comm/group.h>
#include <troika/parallel/data_parallel/gradient_slot.h>
#include <troika/parallel/data_parallel/step_facts.h>
#include <troika/param/bucket_sizes.h>
#include <troika/sync/gradients/bucket_gatherer.h>
#include <troika/sync/gradients/bucket_reducer.h>

#include <cstdint>
#include <span>
#include <vector>

namespace troika::detail {

class GradientBuckets {
 public:
  struct Options {
    BucketSizes sizes = {};
    int stage = 0;  // of ZeRO, 0 to 2
    // The place of facts. kInPadding puts them in the padding of the last bucket, at stage 0 alone,
    // in that bucket's dtype. kSeparate gives them a separate tensor in `facts_dtype`.
    enum class Facts { kInPadding, kSeparate } facts = Facts::kInPadding;
    at::ScalarType facts_dtype = at::kDouble;
    // Of gradients and values. Facts of another than the host's are kSeparate, in host memory.
    at::Device device = at::kCPU;
  };
  // The slots that share a bucket, in ascending order, bucket by bucket.
  using Plan = std::vector<std::vector<std::size_t>>;

  // Lays out `slots`, which must outlive this, in the order of their indices in `order`. Moves the
  // views of the slots.
  GradientBuckets(std::span<GradientSlot> slots, std::span<const std::size_t> order,
                  const Group& group, const Options& options);

  [[nodiscard]] static Plan plan(std::span<const GradientSlot> slots,
                                 std::span<const std::size_t> order, const BucketSizes& sizes);
  [[nodiscard]] const Plan& plan() const { return plan_; }

  // Returns the buckets, with their memory.
  [[nodiscard]] const std::vector<ReducedBucket>& gradients() const { return gradients_; }
  // Return the buckets' values, from stage 1 on, and where this rank's begin in each.
  [[nodiscard]] const std::vector<ShardedBucket>& values() const { return values_; }
  [[nodiscard]] std::int64_t own_begin(std::size_t bucket) const { return own_begins_[bucket]; }
  // Returns the bytes for values and gradients that this rank holds.
  [[nodiscard]] std::int64_t bytes() const;

  // Gives the slots of a bucket their views of `gradients`, which covers the whole bucket. If
  // undefined, takes away the views, and the gradients that lie there.
  void set_views(std::size_t bucket, const at::Tensor& gradients);

  [[nodiscard]] const FactsMemory& facts() const { return facts_; }
  // Returns the separate tensor of the facts; undefined if they lie in the last bucket's padding.
  [[nodiscard]] const at::Tensor& separate_facts() const { return separate_facts_; }

 private:
  void place_slots();
  void allocate(const Group& group);
  void cut_into_shards(std::size_t bucket, const Group& group);
  [[nodiscard]] bool facts_are_apart() const { return options_.facts == Options::Facts::kSeparate; }
  [[nodiscard]] std::int64_t aligned(std::int64_t bytes, at::ScalarType dtype) const;

  std::span<GradientSlot> slots_;
  Options options_;
  Plan plan_;
  std::vector<ReducedBucket> gradients_;
  std::vector<ShardedBucket> values_;
  std::vector<std::int64_t> own_begins_;
  at::Tensor arena_;
  at::Tensor host_facts_;  // where the arena is not the host's
  FactsMemory facts_;
  at::Tensor separate_facts_;
};

}  // namespace troika::detail
