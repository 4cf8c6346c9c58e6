// Internal. The gradients of a module's parameters as views of one arena that peers can read, cut
// into buckets: slices of the arena that are reduced as a whole. A bucket is of one dtype. With
// ZeRO (docs/zero.md) values lie in buckets, too, each rank keeps its own shard of every bucket,
// and at stage 2 a bucket has memory for whole gradients only while they are being made.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/comm/group.h>
#include <troika/parallel/data_parallel/gradient_slot.h>
#include <troika/parallel/data_parallel/step_facts.h>
#include <troika/param/bucket_sizes.h>
#include <troika/sync/gradients/buffer_pool.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troika::detail {

struct ModuleBucket {
  std::vector<std::size_t> slots;
  at::Tensor flat;  // all of it, in one dimension; undefined at stage 2 while it has no memory
  std::int64_t elements = 0;
  at::ScalarType dtype = at::kFloat;
  std::string label;
  int missing = 0;
  bool started = false;
  Work work;
  // From ZeRO stage 1 on: elements that each rank keeps, where this rank's begin, the averages of
  // its own, and all values with its own.
  std::vector<std::int64_t> counts;
  std::int64_t own_begin = 0;
  at::Tensor own, values, own_values;
};

class GradientBuckets {
 public:
  enum class Facts { kInPadding, kSeparate };
  // Lays out `slots` in the order of their indices in `order`; their views move. `stage` of ZeRO, 0
  // to 2; from 1 on facts are apart, in `facts_dtype`.
  GradientBuckets(std::span<GradientSlot> slots, std::span<const std::size_t> order,
                  const BucketSizes& sizes, Facts facts, const Group& group, int stage = 0,
                  at::ScalarType facts_dtype = at::kDouble);

  [[nodiscard]] std::vector<ModuleBucket>& all() { return buckets_; }
  // Which slots would share a bucket, bucket by bucket in their order, each in ascending order.
  [[nodiscard]] static std::vector<std::vector<std::size_t>> plan(
      std::span<const GradientSlot> slots, std::span<const std::size_t> order,
      const BucketSizes& sizes);

  // Stage 2: gives the bucket memory, with whatever is in it, and its slots their views; first
  // takes back that of reductions which have ended, but for the last one. Nothing to do where it
  // has some.
  void acquire_buffer(ModuleBucket& bucket);
  // Takes back only what is done already: there may be more buffers than usual.
  void acquire_without_waiting() { acquire_waits_ = false; }
  // Stage 2: its reduction has ended, or is not to be.
  void release_buffer(ModuleBucket& bucket);
  void release_all_buffers();
  // Bytes for values and gradients that this rank holds, buffers included.
  [[nodiscard]] std::int64_t bytes() const;

  // The facts' own tensor, where they are not in the last bucket's padding; else undefined.
  [[nodiscard]] const at::Tensor& separate_facts() const { return separate_facts_; }
  [[nodiscard]] const FactsMemory& facts() const { return facts_memory_; }

 private:
  void lay_out(const Group& group);
  void place_slots();
  void cut_into_shards(ModuleBucket& bucket, const Group& group) const;
  void set_views(const ModuleBucket& bucket) const;
  [[nodiscard]] std::int64_t aligned(std::int64_t bytes, at::ScalarType dtype) const;

  std::span<GradientSlot> slots_;
  int stage_;
  bool acquire_waits_ = true;
  std::vector<ModuleBucket> buckets_;
  Facts facts_;
  at::Tensor separate_facts_;
  FactsMemory facts_memory_;
  at::ScalarType facts_dtype_ = at::kDouble;
  at::Tensor arena_;
  BufferPool pool_;
};

}  // namespace troika::detail
