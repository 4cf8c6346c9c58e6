#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/sync/gradients/bucket_reducer.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace troika {
namespace {

// One that is being reduced, one that is being written, one that is long on its way: of a tied
// weight, or complete before its turn.
constexpr std::size_t kUsualGradientBuffers = 3;

}  // namespace

BucketReducer::BucketReducer(std::vector<ReducedBucket> buckets, Front& front, Options options)
    : buckets_(std::move(buckets)),
      front_(front),
      options_(std::move(options)),
      progress_(buckets_.size()),
      pool_(options_.shard, kUsualGradientBuffers, options_.device) {}

std::string BucketReducer::label_of(std::size_t bucket, std::string_view what) const {
  return buckets_[bucket].label + std::string(what) + suffix_;
}

void BucketReducer::begin_step(std::span<const Expected> expected) {
  next_ = 0;
  under_way_.clear();
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    Progress& progress = progress_[i];
    progress.expected = expected[i];
    progress.missing = expected[i].contributions;
    progress.reductions = 0;
    progress.started = false;
    progress.work = Work();
  }
}

bool BucketReducer::is_under_way(std::size_t bucket) const {
  return std::ranges::count(under_way_, bucket) > 0;
}

void BucketReducer::borrow_memory(std::size_t bucket) {
  // The buffer of the reduction before is still being read.
  if (progress_[bucket].buffer.defined() && is_under_way(bucket)) retire(bucket);
  ReducedBucket& memory = buckets_[bucket];
  if (memory.gradients.defined()) return;
  check(!progress_[bucket].started, "gradients are needed that have been reduced");
  retire_all_but(1);  // memory is wanted back, but the last one may still be on its way
  const auto size = static_cast<std::int64_t>(c10::elementSize(memory.dtype));
  progress_[bucket].buffer = pool_.acquire(memory.elements * size);
  memory.gradients = progress_[bucket].buffer.view(memory.dtype);
  front_.place_gradients(bucket, memory.gradients);
}

void BucketReducer::add_contribution(std::size_t bucket) {
  check(progress_[bucket].missing > 0, "a bucket of gradients has got a contribution too many");
  --progress_[bucket].missing;
}

void BucketReducer::start_complete() {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const Progress& progress = progress_[i];
    if (progress.expected.reductions > 1 && progress.missing == 0 && !progress.started) start(i);
  }
  while (next_ < buckets_.size()) {
    const Progress& progress = progress_[next_];
    const bool once = progress.expected.reductions == 1;
    if (once && progress.missing > 0) break;
    if (once) start(next_);
    ++next_;
  }
}

void BucketReducer::start_rest() {
  for (; next_ < buckets_.size(); ++next_) {
    if (progress_[next_].expected.reductions == 1) start(next_);
  }
  check(std::ranges::all_of(progress_, &Progress::started),
        "a step ends before all microbatches have contributed to a bucket of gradients");
}

Call BucketReducer::label_call(std::size_t bucket) {
  std::string& label = progress_[bucket].label;
  label.assign(buckets_[bucket].label).append(suffix_);
  return {label, Deadline::in(options_.timeout)};
}

GradientBucket BucketReducer::hook_argument(std::size_t bucket, const Call& call) const {
  return {static_cast<int>(bucket), buckets_[bucket].gradients, &options_.shard, call,
          buckets_[bucket].parts};
}

at::Tensor BucketReducer::sums_of_next(std::size_t bucket) const {
  const ReducedBucket& memory = buckets_[bucket];
  if (progress_[bucket].reductions == 0) return memory.shard;
  const auto own = memory.counts.begin() + options_.shard.rank();
  return memory.gradients.narrow(0, std::accumulate(memory.counts.begin(), own, std::int64_t{0}),
                                 *own);
}

void BucketReducer::start(std::size_t bucket) {
  if (options_.replicate.size() > 1) retire_all_but(0);
  borrow_memory(bucket);
  front_.complete_gradients(bucket);
  const ReducedBucket& memory = buckets_[bucket];
  Progress& progress = progress_[bucket];
  const at::Tensor sums = memory.counts.empty() ? memory.gradients : sums_of_next(bucket);
  progress.sums = progress.reductions > 0 ? sums : at::Tensor();
  progress.started = ++progress.reductions == progress.expected.reductions;
  if (!progress.started) progress.missing = progress.expected.contributions;
  under_way_.push_back(bucket);
  if (options_.hook) {
    progress.work = options_.hook->start(hook_argument(bucket, label_call(bucket)));
    return;
  }
  if (memory.elements == 0) return;
  const Call call = label_call(bucket);
  progress.work =
      memory.counts.empty()
          ? options_.shard.all_reduce(memory.gradients, options_.op, call)
          : options_.shard.reduce_scatter(sums, memory.gradients, options_.op, call, memory.counts);
}

void BucketReducer::retire_all_but(std::size_t last) {
  std::size_t position = 0;
  for (std::size_t count = under_way_.size(); count > last; --count) {
    const std::size_t bucket = under_way_[position];
    if (borrow_waits_ || progress_[bucket].work.done()) {
      retire(bucket);
    } else {
      ++position;
    }
  }
}

void BucketReducer::retire(std::size_t bucket) {
  Progress& progress = progress_[bucket];
  wait_for_reduction(bucket);
  if (progress.sums.defined()) buckets_[bucket].shard.add_(progress.sums);
  release_memory(bucket);
  if (!progress.started) return;  // more of it will follow
  const at::Tensor& sums = buckets_[bucket].sums();
  if (options_.replicate.size() == 1 || sums.numel() == 0) return;
  progress.work = options_.replicate.all_reduce(sums, options_.op, label_call(bucket));
}

void BucketReducer::wait_for_reduction(std::size_t bucket) {
  progress_[bucket].work.wait();
  progress_[bucket].work = Work();
  std::erase(under_way_, bucket);
}

void BucketReducer::release_memory(std::size_t bucket) {
  Progress& progress = progress_[bucket];
  progress.sums = at::Tensor();  // inside it
  if (!progress.buffer.defined()) return;
  front_.place_gradients(bucket, {});
  buckets_[bucket].gradients = at::Tensor();
  pool_.release(std::exchange(progress.buffer, {}));
}

void BucketReducer::wait() {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (is_under_way(i)) retire(i);
    if (!options_.hook) continue;
    options_.hook->finish(hook_argument(i, label_call(i)));
    if (options_.op == ReduceOp::kSum) buckets_[i].gradients.mul_(options_.shard.size());
  }
  for (const Progress& progress : progress_) progress.work.wait();
}

void BucketReducer::abort() {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (progress_[i].reductions == 0) continue;
    wait_for_reduction(i);
    release_memory(i);
  }
  end_step(false);
}

void BucketReducer::end_step(bool applied) {
  if (options_.hook) options_.hook->end_step(applied);
}

void BucketReducer::drop_gradients() {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    wait_for_reduction(i);
    release_memory(i);
  }
}

}  // namespace troika
