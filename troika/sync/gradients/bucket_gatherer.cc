#include <troika/sync/gradients/bucket_gatherer.h>

#include <utility>

namespace troika {

BucketGatherer::BucketGatherer(std::vector<ShardedBucket> buckets, Group group, Seconds timeout)
    : buckets_(std::move(buckets)),
      group_(std::move(group)),
      timeout_(timeout),
      works_(buckets_.size()) {}

Work BucketGatherer::gather(std::size_t bucket, const at::Tensor& output) const {
  if (output.numel() == 0) return {};
  const ShardedBucket& from = buckets_[bucket];
  const std::string label = from.label + suffix_;
  return group_.all_gather(output, from.own, {label, Deadline::in(timeout_)}, from.counts);
}

void BucketGatherer::start_first(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) works_[i] = gather(i, buckets_[i].whole);
}

void BucketGatherer::wait(std::size_t bucket) {
  std::exchange(works_[bucket], {}).wait();
}

void BucketGatherer::wait() {
  for (std::size_t i = 0; i < works_.size(); ++i) wait(i);
}

}  // namespace troika
