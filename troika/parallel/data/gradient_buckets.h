// Internal. The gradients of a module's parameters as views of one arena that peers can read, cut
// into buckets: slices of the arena that are reduced as a whole. A bucket is of one dtype.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/comm/group.h>
#include <troika/param/bucket_sizes.h>

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
  at::Tensor view;             // of the arena, with the parameter's strides where they are dense
  const void* data = nullptr;  // where the parameter's values were last seen
  int bucket = 0;
  std::uint64_t pass = 0;  // the last backward pass that has given it a gradient
};

struct Bucket {
  std::vector<int> slots;
  at::Tensor flat;  // all of it, in one dimension
  std::string label;
  int missing = 0;
  bool started = false;
  Work work;
};

// What ranks tell each other in every step, beside their gradients: averaged over all ranks like
// them, mostly in the padding of the last bucket.
struct StepFacts {
  static constexpr std::int64_t kCount = 5;
  double weight = 1;   // of this rank
  double present = 1;  // 0 in join(): a rank that has no batch, and does not look at its parameters
  double tally = 0;    // of writes to parameters, in 0..15: equal on all ranks
  double tally_squared = 0;
  double alarm = 0;  // not 0: there is something to tell the others
};

class GradientBuckets {
 public:
  enum class Facts { kInPadding, kApart };
  // Lays out `slots` in the order of their indices in `order`; their views move.
  GradientBuckets(std::span<GradientSlot> slots, std::span<const int> order,
                  const BucketSizes& sizes, Facts facts, const Group& group);

  [[nodiscard]] std::vector<Bucket>& all() { return buckets_; }
  // Which slots would share a bucket, bucket by bucket in their order, each in ascending order.
  [[nodiscard]] static std::vector<std::vector<int>> plan(std::span<const GradientSlot> slots,
                                                          std::span<const int> order,
                                                          const BucketSizes& sizes);

  // The facts' own tensor, where they are not in the last bucket's padding; else undefined.
  [[nodiscard]] const at::Tensor& facts_apart() const { return facts_apart_; }
  void write(const StepFacts& facts);
  [[nodiscard]] StepFacts read() const;

 private:
  void lay_out(std::span<GradientSlot> slots, const Group& group);

  std::vector<Bucket> buckets_;
  Facts facts_;
  at::Tensor facts_apart_;
  void* facts_data_ = nullptr;
  at::ScalarType facts_dtype_ = at::kDouble;
  at::Tensor arena_;
};

}  // namespace troika::detail
