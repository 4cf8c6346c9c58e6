// Internal. The gradients of a module's parameters as views of one arena that peers can read, cut
// into buckets: slices of the arena that are reduced as a whole. A bucket is of one dtype. With
// ZeRO (docs/zero.md) values lie in buckets, too, each rank keeps its own shard of every bucket,
// and at stage 2 a bucket has memory for whole gradients only while they are being made.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/comm/group.h>
#include <troika/param/bucket_sizes.h>
#include <troika/sync/gradients/buffer_pool.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troika::detail {

// One parameter that is trained. Tied ones are one, under the first of their names.
struct GradientSlot {
  std::string name;
  at::Tensor parameter;
  at::ScalarType dtype;
  // Of the arena, with `strides`; undefined at ZeRO stage 2 while its bucket has no memory.
  at::Tensor view;
  at::Tensor value;                 // the same place among values; undefined at stage 0
  std::int64_t offset = 0;          // in its bucket, in elements
  std::vector<std::int64_t> sizes;  // of the parameter when it was taken in
  // What AccumulateGrad gave a gradient then: the parameter's where they are dense, else of rows.
  // The same on all ranks, whatever becomes of the parameter's on some.
  std::vector<std::int64_t> strides;
  const void* data = nullptr;  // where the parameter's values were last seen
  std::uint32_t moves = 0;     // how often they were elsewhere, since all ranks had the same
  int bucket = 0;
  std::uint64_t pass = 0;  // the last backward pass that has given it a gradient
};

// "parameter 'fc.weight'"
[[nodiscard]] std::string title_of(const GradientSlot& slot);

struct ModuleBucket {
  std::vector<int> slots;
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

// What ranks tell each other in every step, beside their gradients: averaged over all ranks like
// them, mostly in the padding of the last bucket.
struct StepFacts {
  static constexpr std::int64_t kCount = 5;
  double weight = 1;   // of this rank
  double present = 1;  // 0 in join(): a rank that has no batch, and does not look at its parameters
  double checksum = 0;  // of parameters and writes to them, in 0..15: equal on all ranks
  double checksum_squared = 0;
  double alarm = 0;  // not 0: there is something to tell the others
};

class GradientBuckets {
 public:
  enum class Facts { kInPadding, kSeparate };
  // Lays out `slots` in the order of their indices in `order`; their views move. `stage` of ZeRO, 0
  // to 2; from 1 on facts are apart, in `facts_dtype`.
  GradientBuckets(std::span<GradientSlot> slots, std::span<const int> order,
                  const BucketSizes& sizes, Facts facts, const Group& group, int stage = 0,
                  at::ScalarType facts_dtype = at::kDouble);

  [[nodiscard]] std::vector<ModuleBucket>& all() { return buckets_; }
  // Which slots would share a bucket, bucket by bucket in their order, each in ascending order.
  [[nodiscard]] static std::vector<std::vector<int>> plan(std::span<const GradientSlot> slots,
                                                          std::span<const int> order,
                                                          const BucketSizes& sizes);

  // Stage 2: gives the bucket memory, with whatever is in it, and its slots their views; first
  // takes back that of reductions which have ended, but for the last one. Nothing to do where it
  // has some.
  void acquire_buffer(ModuleBucket& bucket, std::span<GradientSlot> slots);
  // Takes back only what is done already: there may be more buffers than usual.
  void acquire_without_waiting() { acquire_waits_ = false; }
  // Stage 2: its reduction has ended, or is not to be.
  void release_buffer(ModuleBucket& bucket, std::span<GradientSlot> slots);
  // Bytes for values and gradients that this rank holds, buffers included.
  [[nodiscard]] std::int64_t bytes() const;

  // The facts' own tensor, where they are not in the last bucket's padding; else undefined.
  [[nodiscard]] const at::Tensor& separate_facts() const { return separate_facts_; }
  void write(const StepFacts& facts);
  [[nodiscard]] StepFacts read() const;

 private:
  void lay_out(std::span<GradientSlot> slots, const Group& group);
  void place_slots(std::span<GradientSlot> slots);
  void cut_into_shards(ModuleBucket& bucket, const Group& group) const;
  void set_views(const ModuleBucket& bucket, std::span<GradientSlot> slots) const;
  [[nodiscard]] std::int64_t aligned(std::int64_t bytes, at::ScalarType dtype) const;

  int stage_;
  bool acquire_waits_ = true;
  std::vector<ModuleBucket> buckets_;
  Facts facts_;
  at::Tensor separate_facts_;
  void* facts_data_ = nullptr;
  at::ScalarType facts_dtype_ = at::kDouble;
  at::Tensor arena_;
  BufferPool pool_;
};

}  // namespace troika::detail
