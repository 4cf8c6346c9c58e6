#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/sync/gradients/gradient_reducer.h>

#include <algorithm>

namespace troika {
namespace {

// One that is being reduced, one that is being written, one of a tied weight that is long on its
// way.
constexpr std::size_t kUsualBuffers = 3;

std::vector<const Parameter*> partial_over(const Arena& arena, const Bucket& bucket, Axis axis) {
  std::vector<const Parameter*> found;
  for (std::size_t i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
    const Parameter& parameter = *arena.parameters()[i];
    if (std::ranges::count(parameter.spec().partial_over, axis) > 0) found.push_back(&parameter);
  }
  return found;
}

}  // namespace

GradientReducer::GradientReducer(Arena& arena, const PartialGroups& partial)
    : arena_(arena),
      shard_(arena.sharding().shard),
      replicate_(arena.sharding().replicate),
      pool_(shard_, kUsualBuffers) {
  const std::size_t buckets = arena.layout().buckets().size();
  reduction_of_.resize(buckets);
  for (const bool tied : {false, true}) {
    for (std::size_t bucket = buckets; bucket-- > 0;) {
      if (is_tied(bucket, partial) == tied) add_reduction(bucket, partial);
    }
  }
  for (int unit = 0; unit < arena.units(); ++unit) {
    for (const std::size_t bucket : arena.buckets_of(unit)) {
      ++reductions_[reduction_of_[bucket]].contributors;
    }
  }
}

bool GradientReducer::is_tied(std::size_t bucket, const PartialGroups& partial) const {
  return partial.embedding.size() > 1 &&
         !partial_over(arena_, arena_.layout().buckets()[bucket], Axis::kPipeline).empty();
}

void GradientReducer::add_reduction(std::size_t bucket, const PartialGroups& partial) {
  const Bucket& bounds = arena_.layout().buckets()[bucket];
  reduction_of_[bucket] = reductions_.size();
  reductions_.push_back(
      {.bucket = bucket,
       .is_tied = is_tied(bucket, partial),
       .memory = {},
       .label = "gradient bucket " + std::to_string(reductions_.size() + 1),
       .work = {},
       .tensor_all_reduce = {partial.tensor, partial_over(arena_, bounds, Axis::kTensor),
                             CoalescedAllReduce::Slices::kOverlapping},
       .embedding_all_reduce = {partial.embedding, partial_over(arena_, bounds, Axis::kPipeline),
                                CoalescedAllReduce::Slices::kSame}});
}

const Bucket& GradientReducer::bucket_of(const BucketReduction& reduction) const {
  return arena_.layout().buckets()[reduction.bucket];
}

void GradientReducer::begin_step(int microbatches, Seconds timeout) {
  check(arena_.keeps_gradients() || microbatches <= 1,
        "a step of several microbatches, where the arena was made for one");
  timeout_ = timeout;
  arena_.release_gradients();
  next_ = replica_reductions_started_ = 0;
  for (BucketReduction& reduction : reductions_) {
    reduction.missing = reduction.contributors * microbatches;
    reduction.started = false;
    reduction.work = Work();
  }
}

void GradientReducer::prepare_gradients(int unit) {
  if (arena_.keeps_gradients()) return;
  for (const std::size_t bucket : arena_.buckets_of(unit))
    acquire_buffer(reductions_[reduction_of_[bucket]]);
}

void GradientReducer::acquire_buffer(BucketReduction& reduction) {
  if (arena_.keeps_gradients() || reduction.memory.defined()) return;
  check(!reduction.started, "gradients are needed that have been reduced");
  start_replica_reductions(1);  // memory is wanted back, but the last one may still be on its way
  const Bucket& bucket = bucket_of(reduction);
  const at::ScalarType type = arena_.types().master;
  const auto size = static_cast<std::int64_t>(c10::elementSize(type));
  reduction.memory = pool_.acquire(bucket.count() * size);
  arena_.set_gradients(bucket, reduction.memory.view(type));
}

void GradientReducer::gradients_ready(int unit) {
  for (const std::size_t bucket : arena_.buckets_of(unit)) {
    BucketReduction& reduction = reductions_[reduction_of_[bucket]];
    check(reduction.missing > 0, "a unit was ready once too often");
    --reduction.missing;
  }
  while (next_ < reductions_.size() && reductions_[next_].missing == 0 &&
         !reductions_[next_].is_tied) {
    start(reductions_[next_++]);
  }
}

void GradientReducer::start(BucketReduction& reduction) {
  if (replicate_.size() > 1) start_replica_reductions(0);
  acquire_buffer(reduction);
  const Bucket& bucket = bucket_of(reduction);
  for (std::size_t i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
    arena_.parameters()[i]->claim_zeroed();
  }
  reduction.tensor_all_reduce.run(reduction.label + ", tensor axis" + pass_, timeout_);
  reduction.embedding_all_reduce.run(reduction.label + ", tied" + pass_, timeout_);
  reduction.started = true;
  const at::Tensor gradients = reduction.memory.defined()
                                   ? reduction.memory.view(arena_.types().master)
                                   : arena_.gradients_of(bucket);
  if (gradients.numel() == 0) return;
  const std::string label = reduction.label + pass_;
  const Call call{label, Deadline::in(timeout_)};
  if (arena_.sharding().stage == 0) {
    reduction.work = shard_.all_reduce(gradients, ReduceOp::kSum, call);
    return;
  }
  std::vector<std::int64_t> counts;
  for (std::size_t i = 1; i < bucket.borders.size(); ++i) {
    counts.push_back(bucket.borders[i] - bucket.borders[i - 1]);
  }
  reduction.work = shard_.reduce_scatter(arena_.own_gradients_of(bucket), gradients, ReduceOp::kSum,
                                         call, counts);
}

void GradientReducer::start_replica_reductions(std::size_t but_last) {
  std::size_t started = next_;
  while (started > replica_reductions_started_ && !reductions_[started - 1].started) --started;
  for (; replica_reductions_started_ + but_last < started; ++replica_reductions_started_)
    reduce_over_replicas(reductions_[replica_reductions_started_]);
}

void GradientReducer::reduce_over_replicas(BucketReduction& reduction) {
  reduction.work.wait();
  reduction.work = Work();
  if (reduction.memory.defined()) {
    arena_.set_gradients(bucket_of(reduction), {});
    pool_.release(reduction.memory);
    reduction.memory = at::Tensor();
  }
  const at::Tensor own = arena_.own_gradients_of(bucket_of(reduction));
  if (own.numel() > 0) {
    reduction.work = replicate_.all_reduce(own, ReduceOp::kSum,
                                           {reduction.label + pass_, Deadline::in(timeout_)});
  }
}

void GradientReducer::finish() {
  while (next_ < reductions_.size()) start(reductions_[next_++]);
  start_replica_reductions(0);
  for (const BucketReduction& reduction : reductions_) reduction.work.wait();
}

std::vector<std::size_t> GradientReducer::order() const {
  std::vector<std::size_t> buckets;
  for (const BucketReduction& reduction : reductions_) buckets.push_back(reduction.bucket);
  return buckets;
}

std::int64_t GradientReducer::buffer_bytes() const {
  std::int64_t bytes = pool_.bytes();
  for (const BucketReduction& reduction : reductions_) {
    bytes += reduction.tensor_all_reduce.bytes() + reduction.embedding_all_reduce.bytes();
  }
  return bytes;
}

}  // namespace troika
