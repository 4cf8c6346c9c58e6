#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/sync/gradients/bucket_reducer.h>

#include <algorithm>
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

void BucketReducer::begin_step(std::span<const int> contributions) {
  next_ = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    Progress& progress = progress_[i];
    progress.missing = contributions[i];
    progress.started = progress.retired = false;
    progress.work = Work();
  }
}

void BucketReducer::borrow_memory(std::size_t bucket) {
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
  while (next_ < buckets_.size() && progress_[next_].missing == 0) start(next_++);
}

void BucketReducer::start_rest() {
  while (next_ < buckets_.size()) start(next_++);
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

void BucketReducer::start(std::size_t bucket) {
  if (options_.replicate.size() > 1) retire_all_but(0);
  borrow_memory(bucket);
  front_.complete_gradients(bucket);
  const ReducedBucket& memory = buckets_[bucket];
  Progress& progress = progress_[bucket];
  progress.started = true;
  if (options_.hook) {
    progress.work = options_.hook->start(hook_argument(bucket, label_call(bucket)));
    return;
  }
  if (memory.elements == 0) return;
  const Call call = label_call(bucket);
  progress.work = memory.counts.empty()
                      ? options_.shard.all_reduce(memory.gradients, options_.op, call)
                      : options_.shard.reduce_scatter(memory.shard, memory.gradients, options_.op,
                                                      call, memory.counts);
}

void BucketReducer::retire_all_but(std::size_t last) {
  const auto is_under_way = [](const Progress& each) { return each.started && !each.retired; };
  auto under_way = static_cast<std::size_t>(std::ranges::count_if(progress_, is_under_way));
  for (std::size_t i = 0; i < next_ && under_way > last; ++i) {
    if (!is_under_way(progress_[i])) continue;
    --under_way;
    if (borrow_waits_ || progress_[i].work.done()) retire(i);
  }
}

void BucketReducer::retire(std::size_t bucket) {
  finish_reduction(bucket);
  const at::Tensor& sums = buckets_[bucket].sums();
  if (options_.replicate.size() == 1 || sums.numel() == 0) return;
  progress_[bucket].work = options_.replicate.all_reduce(sums, options_.op, label_call(bucket));
}

void BucketReducer::finish_reduction(std::size_t bucket) {
  Progress& progress = progress_[bucket];
  progress.work.wait();
  progress.work = Work();
  progress.retired = progress.started;
  if (!progress.buffer.defined()) return;
  front_.place_gradients(bucket, {});
  buckets_[bucket].gradients = at::Tensor();
  pool_.release(std::exchange(progress.buffer, {}));
}

void BucketReducer::wait() {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (progress_[i].started && !progress_[i].retired) retire(i);
    if (!options_.hook) continue;
    options_.hook->finish(hook_argument(i, label_call(i)));
    if (options_.op == ReduceOp::kSum) buckets_[i].gradients.mul_(options_.shard.size());
  }
  for (const Progress& progress : progress_) progress.work.wait();
}

void BucketReducer::abort() {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (progress_[i].started) finish_reduction(i);
  }
  end_step(false);
}

void BucketReducer::end_step(bool applied) {
  if (options_.hook) options_.hook->end_step(applied);
}

void BucketReducer::drop_gradients() {
  for (std::size_t i = 0; i < buckets_.size(); ++i) finish_reduction(i);
}

}  // namespace troika
