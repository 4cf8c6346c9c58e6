// What happens to a bucket of gradients between the backward pass and the optimiser: an average
// over the ranks, or a custom reduction. DataParallel takes one in its options.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/comm/group.h>

#include <memory>

namespace troika {

struct GradientBucket {
  // The position in the order in which buckets are reduced, from 0. Buckets may be cut anew once,
  // at the end of the first average, in the order in which gradients became ready. An index then
  // stands for other parameters, and the number of buckets may change. A hook that keeps state by
  // index has to notice, by the number of elements at least.
  int index = 0;
  // This rank's gradients, one after the other with a little padding: one dimension, contiguous.
  // finish() leaves the result for the optimiser here. Where ranks have weights (weigh(), join()),
  // gradients are multiplied before start() by this rank's weight over the mean of all. That factor
  // is 1 where all weigh the same.
  at::Tensor gradients;
  const Group* group = nullptr;
  Call call;
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
};

// Averages in bf16, which halves the bytes of fp32. Every rank rounds its gradients once, they are
// summed in fp32, and the average is rounded once more.
[[nodiscard]] std::shared_ptr<BucketHook> compress_to_bf16();
// Averages in fp16 likewise. A value larger than 65504 becomes infinite, and one smaller than 6e-8
// zero.
[[nodiscard]] std::shared_ptr<BucketHook> compress_to_fp16();

}  // namespace troika
