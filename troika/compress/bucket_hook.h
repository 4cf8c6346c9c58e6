// What happens to a bucket of gradients between the backward pass and the optimiser: an average
// over the ranks, or a custom reduction. DataParallel takes one in its options; compressors.h has
// those that send less.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/comm/group.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace troika {

// The place of a parameter in a bucket, where its elements lie end to end.
struct BucketPart {
  std::int64_t begin = 0;           // in elements
  std::vector<std::int64_t> shape;  // dimensions as they lie in memory, the outermost first

  [[nodiscard]] std::int64_t count() const;
  bool operator==(const BucketPart&) const = default;
};

struct GradientBucket {
  // The position in the order in which buckets are reduced, from 0. Buckets may be cut anew once,
  // at the end of the first average, in the order in which gradients became ready. An index then
  // stands for other parameters, and the number of buckets may change. A hook that keeps state by
  // index has to notice, by the parts.
  int index = 0;
  // This rank's gradients, one after the other with a little padding: one dimension, contiguous.
  // finish() leaves the result for the optimiser here. Where ranks have weights (weigh(), join()),
  // gradients are multiplied before start() by this rank's weight over the mean of all. That factor
  // is 1 where all weigh the same.
  at::Tensor gradients;
  const Group* group = nullptr;
  Call call;
  // The parameters, ascending. What none of them covers is padding. Empty where they are not known.
  std::span<const BucketPart> parts = {};
};

// Holds what a hook keeps of a bucket from step to step.
struct BucketMemory {
  at::Tensor error;                 // [elements], still to be sent; undefined where all is sent
  std::vector<at::Tensor> factors;  // by part, equal on all ranks; undefined where it has none
  std::int64_t rounds = 0;          // averages so far
};

// Replaces the reduction of a bucket. The thread of the backward pass calls it, for each bucket in
// the same order on all ranks. All ranks need the same hook.
class BucketHook {
 public:
  virtual ~BucketHook() = default;
  // Starts the reduction of a bucket that is complete on this rank, and returns at once.
  [[nodiscard]] virtual Work start(const GradientBucket& bucket) = 0;
  // Leaves the average over all ranks in `bucket.gradients`, once start()'s work is done.
  virtual void finish(const GradientBucket& bucket) = 0;
  // Ends a step. Unless `applied`, what the hook keeps is what it was before. Where nothing ends
  // steps, each counts as applied.
  virtual void end_step(bool applied);
  // Returns what it keeps of a bucket between steps, to be saved or written; null where there is
  // nothing.
  [[nodiscard]] virtual BucketMemory* memory(const GradientBucket& bucket);
  // Collective over `group`, like peers(). Returns whether there is anything for it to do between
  // its ranks.
  [[nodiscard]] virtual bool applies_to(const Group& group) const;
  // Returns the ranks of `group` that keep what this one does of the same buckets, each for itself.
  [[nodiscard]] virtual const Group& peers(const Group& group) const;
};

// Averages in bf16, which halves the bytes of fp32. Every rank rounds its gradients once, they are
// summed in fp32, and the average is rounded once more.
[[nodiscard]] std::shared_ptr<BucketHook> compress_to_bf16();
// Averages in fp16 likewise. A value larger than 65504 becomes infinite, and one smaller than 6e-8
// zero.
[[nodiscard]] std::shared_ptr<BucketHook> compress_to_fp16();

}  // namespace troika
