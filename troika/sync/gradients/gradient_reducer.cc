#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/sync/gradients/gradient_reducer.h>
#include <troika/sync/gradients/shard_counts.h>

#include <algorithm>
#include <utility>

namespace troika {
namespace {

std::vector<const Parameter*> partial_over(const Arena& arena, const Bucket& bucket, Axis axis) {
  std::vector<const Parameter*> found;
  for (std::size_t i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
    const Parameter& parameter = *arena.parameters()[i];
    if (std::ranges::count(parameter.spec().partial_over, axis) > 0) found.push_back(&parameter);
  }
  return found;
}

}  // namespace

GradientReducer::GradientReducer(Arena& arena, const PartialGroups& partial,
                                 std::shared_ptr<BucketHook> hook)
    : arena_(arena),
      buckets_(order_buckets(partial)),
      position_of_(buckets_.size()),
      expected_(buckets_.size()),
      reducer_(reduced_buckets(), *this,
               {.shard = arena.sharding().shard,
                .replicate = arena.sharding().replicate,
                .hook = std::move(hook),
                .device = arena.device()}) {
  for (std::size_t i = 0; i < buckets_.size(); ++i) position_of_[buckets_[i].bucket] = i;
  for (int unit = 0; unit < arena.units(); ++unit) {
    for (const std::size_t bucket : arena.trained_buckets_of(unit)) {
      ++buckets_[position_of_[bucket]].contributors;
    }
  }
}

// From the last to the first, the order in which gradients become ready. Tied ones come after all
// others: they wait for another stage.
std::vector<GradientReducer::ArenaBucket> GradientReducer::order_buckets(
    const PartialGroups& partial) const {
  const std::span<const Bucket> all = arena_.layout().trained_buckets();
  std::vector<ArenaBucket> buckets;
  for (std::size_t bucket = all.size(); bucket-- > 0;) {
    const auto over_stages = partial_over(arena_, all[bucket], Axis::kPipeline);
    buckets.push_back(
        {.bucket = bucket,
         .is_tied = partial.embedding.size() > 1 && !over_stages.empty(),
         .tensor_all_reduce = {partial.tensor, partial_over(arena_, all[bucket], Axis::kTensor),
                               CoalescedAllReduce::Slices::kOverlapping},
         .embedding_all_reduce = {partial.embedding, over_stages,
                                  CoalescedAllReduce::Slices::kSame}});
  }
  std::ranges::stable_partition(buckets, [](const ArenaBucket& each) { return !each.is_tied; });
  return buckets;
}

std::vector<ReducedBucket> GradientReducer::reduced_buckets() const {
  std::vector<ReducedBucket> reduced;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bounds = bounds_of(i);
    ReducedBucket& bucket = reduced.emplace_back();
    bucket.label = "gradient bucket " + std::to_string(i + 1);
    bucket.dtype = arena_.types().master;
    bucket.elements = bounds.count();
    for (std::size_t p = bounds.first_parameter; p < bounds.last_parameter; ++p) {
      bucket.parts.push_back({arena_.layout().slots()[p].offset - bounds.begin(),
                              arena_.parameters()[p]->spec().local_shape()});
    }
    if (arena_.keeps_gradients()) bucket.gradients = arena_.gradients_of(bounds);
    if (arena_.sharding().stage == 0) continue;
    bucket.counts = shard_counts(bounds.borders);
    bucket.shard = arena_.own_gradients_of(bounds);
  }
  return reduced;
}

const Bucket& GradientReducer::bounds_of(std::size_t bucket) const {
  return arena_.layout().buckets()[buckets_[bucket].bucket];
}

void GradientReducer::begin_step(int microbatches, Seconds timeout) {
  const bool cuts_each =
      !arena_.keeps_gradients() && arena_.sharding().cut_gradients == CutGradients::kEachMicrobatch;
  check(arena_.keeps_gradients() || cuts_each || microbatches <= 1,
        "a step of several microbatches, where the arena was made for one");
  timeout_ = timeout;
  reducer_.set_timeout(timeout);
  arena_.release_gradients();
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const ArenaBucket& bucket = buckets_[i];
    if (bucket.is_tied) {
      // One contribution more than there are: it is left to finish(), and whole until then.
      expected_[i] = {bucket.contributors * microbatches + 1, 1};
    } else if (cuts_each && microbatches > 1) {
      expected_[i] = {bucket.contributors, microbatches};
    } else {
      expected_[i] = {bucket.contributors * microbatches, 1};
    }
  }
  reducer_.begin_step(expected_);
}

void GradientReducer::prepare_gradients(int unit) {
  for (const std::size_t bucket : arena_.trained_buckets_of(unit)) {
    reducer_.borrow_memory(position_of_[bucket]);
  }
}

void GradientReducer::place_gradients(std::size_t bucket, const at::Tensor& gradients) {
  const Bucket& bounds = bounds_of(bucket);
  arena_.set_gradients(bounds, gradients);
  if (!gradients.defined()) return;  // that they have been contributed still holds
  for (std::size_t i = bounds.first_parameter; i < bounds.last_parameter; ++i) {
    arena_.parameters()[i]->release_gradient();
  }
}

void GradientReducer::gradients_ready(int unit) {
  for (const std::size_t bucket : arena_.trained_buckets_of(unit)) {
    reducer_.add_contribution(position_of_[bucket]);
  }
  reducer_.start_complete();
}

void GradientReducer::complete_gradients(std::size_t bucket) {
  const Bucket& bounds = bounds_of(bucket);
  for (std::size_t i = bounds.first_parameter; i < bounds.last_parameter; ++i) {
    arena_.parameters()[i]->claim_zeroed();
  }
  ArenaBucket& own = buckets_[bucket];
  own.tensor_all_reduce.run(reducer_.label_of(bucket, ", tensor axis"), timeout_);
  own.embedding_all_reduce.run(reducer_.label_of(bucket, ", tied"), timeout_);
}

void GradientReducer::finish() {
  reducer_.start_rest();
  reducer_.wait();
}

std::vector<std::size_t> GradientReducer::order() const {
  std::vector<std::size_t> order;
  for (const ArenaBucket& each : buckets_) order.push_back(each.bucket);
  return order;
}

std::int64_t GradientReducer::buffer_bytes() const {
  std::int64_t bytes = reducer_.buffer_bytes();
  for (const ArenaBucket& each : buckets_) {
    bytes += each.tensor_all_reduce.bytes() + each.embedding_all_reduce.bytes();
  }
  return bytes;
}

}  // namespace troika
