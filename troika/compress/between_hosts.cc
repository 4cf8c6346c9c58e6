// A hook that averages a bucket inside each host first, and lets another hook compress the averages
// between hosts.
#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/compress/compressors.h>

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

class BetweenHosts final : public BucketHook {
 public:
  explicit BetweenHosts(std::shared_ptr<BucketHook> hook) : hook_(std::move(hook)) {}

  [[nodiscard]] Work start(const GradientBucket& bucket) override {
    Entry started{bucket, std::string(bucket.call.label),
                  std::vector<BucketPart>(bucket.parts.begin(), bucket.parts.end())};
    Entry& entry = entries_.insert_or_assign(bucket.index, std::move(started)).first->second;
    entry.inside =
        bucket.gradients.numel() == 0
            ? Work()
            : hosts_of(bucket).inside.all_reduce(bucket.gradients, ReduceOp::kSum, bucket.call);
    summed_.push_back(bucket.index);
    start_between(Which::kDone);
    return entry.inside;
  }

  // By now all buckets have been started, everywhere.
  void finish(const GradientBucket& bucket) override {
    start_between(Which::kAll);
    if (bucket.gradients.numel() == 0) return;
    const HostGroups& hosts = hosts_of(bucket);
    if (is_own(bucket)) {
      entries_.at(bucket.index).between.wait();
      hook_->finish(between(bucket));
      // Of the mean of hosts' sums.
      bucket.gradients.mul_(static_cast<double>(hosts.hosts) / bucket.group->size());
    }
    hosts.inside.broadcast(bucket.gradients, owner_of(bucket), bucket.call).wait();
  }

  void end_step(bool applied) override {
    start_between(Which::kAll);  // of a step that is given up
    for (auto& [index, entry] : entries_) std::exchange(entry.between, Work()).wait();
    hook_->end_step(applied);
  }

  [[nodiscard]] BucketMemory* memory(const GradientBucket& bucket) override {
    return is_own(bucket) ? hook_->memory(between(bucket)) : nullptr;
  }
  [[nodiscard]] bool applies_to(const Group& group) const override {
    return group.by_host().hosts > 1;
  }
  [[nodiscard]] const Group& peers(const Group& group) const override {
    return group.by_host().between;
  }

 private:
  struct Entry {
    GradientBucket bucket;
    std::string label;
    std::vector<BucketPart> parts;
    Work inside = {}, between = {};
  };

  static const HostGroups& hosts_of(const GradientBucket& bucket) {
    return bucket.group->by_host();
  }
  // Returns the local rank that goes on with a bucket on each host.
  static int owner_of(const GradientBucket& bucket) {
    return bucket.index % hosts_of(bucket).common_local_ranks;
  }
  static bool is_own(const GradientBucket& bucket) {
    return owner_of(bucket) == hosts_of(bucket).local_rank;
  }
  // Describes a bucket to the hook. Its time begins anew: the backward pass may have gone on since.
  static GradientBucket between(GradientBucket bucket) {
    bucket.group = &hosts_of(bucket).between;
    bucket.call.deadline = Deadline::in(bucket.call.deadline.timeout());
    return bucket;
  }

  // Goes on between hosts with buckets whose sums inside are there, or with all. In the order in
  // which they have been started, which is the same on every host, whenever sums are there.
  enum class Which { kDone, kAll };
  void start_between(Which which) {
    while (!summed_.empty()) {
      Entry& entry = entries_.at(summed_.front());
      if (which == Which::kDone && !entry.inside.done()) return;
      summed_.pop_front();
      entry.inside.wait();
      if (!is_own(entry.bucket)) continue;
      entry.bucket.call.label = entry.label;
      entry.bucket.parts = entry.parts;
      entry.between = hook_->start(between(entry.bucket));
    }
  }

  std::shared_ptr<BucketHook> hook_;
  std::map<int, Entry> entries_;  // by bucket
  std::deque<int> summed_;        // buckets whose sum inside is on its way
};

}  // namespace

std::shared_ptr<BucketHook> between_hosts(std::shared_ptr<BucketHook> hook) {
  return std::make_shared<BetweenHosts>(std::move(hook));
}

}  // namespace troika
