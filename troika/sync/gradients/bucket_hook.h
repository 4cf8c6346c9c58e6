// What happens to a bucket of gradients between the backward pass and the optimiser: an average
// over the ranks, or a custom reduction. DataParallel takes one in its options.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/comm/group.h>

#include <memory>

namespace troika {

struct GradientBucket {
  // In the order in which buckets are reduced, from 0. Once, at the end of the first average,
  // buckets may be cut anew, in the order in which gradients became ready: from then on an index is
  // of other parameters, and there may be more or fewer of them. A hook that keeps something by
  // index has to notice, by the number of elements at least.
  int index = 0;
  // This rank's gradients, one after the other with a little padding: one dimension, contiguous.
  // finish() leaves here what the optimiser is to see. Where ranks have weights (weigh(), join()),
  // gradients are multiplied before start() by this rank's over the mean of all, which is 1 where
  // all weigh the same.
  at::Tensor gradients;
  const Group* group = nullptr;
  Call call;
};

// Called by the thread of the backward pass, for each bucket in the same order on all ranks. All
// ranks need the same hook.
class BucketHook {
 public:
  virtual ~BucketHook() = default;
  // The bucket is complete on this rank: starts its reduction, and returns at once.
  [[nodiscard]] virtual Work start(const GradientBucket& bucket) = 0;
  // start()'s work is done: leaves the average over all ranks in `bucket.gradients`.
  virtual void finish(const GradientBucket& bucket) = 0;
};

// Averages in another dtype, which halves the bytes of fp32: every rank rounds its gradients once,
// they are summed in fp32, and the average is rounded once more.
[[nodiscard]] std::shared_ptr<BucketHook> compress_to_bf16();
// The same; what is larger than 65504 becomes infinite, and what is smaller than 6e-8 zero.
[[nodiscard]] std::shared_ptr<BucketHook> compress_to_fp16();

}  // namespace troika
