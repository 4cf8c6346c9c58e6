#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/parallel/data/gradient_reducer.h>

#include <algorithm>

namespace troika {
namespace {

// One that is being reduced, one that is being written, one of a tied weight that is long on its
// way.
constexpr std::size_t kUsualBuffers = 3;

std::vector<const Parameter*> partial_over(const Arena& arena, const Block& block, Axis axis) {
  std::vector<const Parameter*> found;
  for (std::size_t i = block.first_parameter; i < block.last_parameter; ++i) {
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
  const std::size_t blocks = arena.layout().blocks().size();
  bucket_of_.resize(blocks);
  for (const bool tied : {false, true}) {
    for (std::size_t block = blocks; block-- > 0;) {
      if (is_tied(block, partial) == tied) add_bucket(block, partial);
    }
  }
  for (int unit = 0; unit < arena.units(); ++unit) {
    for (const std::size_t block : arena.blocks_of(unit)) {
      ++buckets_[bucket_of_[block]].contributors;
    }
  }
}

bool GradientReducer::is_tied(std::size_t block, const PartialGroups& partial) const {
  return partial.tie.size() > 1 &&
         !partial_over(arena_, arena_.layout().blocks()[block], Axis::kPipeline).empty();
}

void GradientReducer::add_bucket(std::size_t block, const PartialGroups& partial) {
  const Block& place = arena_.layout().blocks()[block];
  bucket_of_[block] = buckets_.size();
  buckets_.push_back({.block = block,
                      .is_tied = is_tied(block, partial),
                      .memory = {},
                      .label = "gradient bucket " + std::to_string(buckets_.size() + 1),
                      .work = {},
                      .tensor_sum = {partial.tensor, partial_over(arena_, place, Axis::kTensor),
                                     PackedSum::Slices::kOverlapping},
                      .tie_sum = {partial.tie, partial_over(arena_, place, Axis::kPipeline),
                                  PackedSum::Slices::kSame}});
}

const Block& GradientReducer::block_of(const Bucket& bucket) const {
  return arena_.layout().blocks()[bucket.block];
}

void GradientReducer::begin_step(int microbatches, Seconds timeout) {
  check(arena_.keeps_gradients() || microbatches <= 1,
        "a step of several microbatches, where the arena was made for one");
  timeout_ = timeout;
  arena_.release_gradients();
  next_ = followed_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.contributors * microbatches;
    bucket.started = false;
    bucket.work = Work();
  }
}

void GradientReducer::need_gradients(int unit) {
  if (arena_.keeps_gradients()) return;
  for (const std::size_t block : arena_.blocks_of(unit)) lend(buckets_[bucket_of_[block]]);
}

void GradientReducer::lend(Bucket& bucket) {
  if (arena_.keeps_gradients() || bucket.memory.defined()) return;
  check(!bucket.started, "gradients are needed that have been reduced");
  follow_up(1);  // memory is wanted back, but the last one may still be on its way
  const Block& block = block_of(bucket);
  const at::ScalarType type = arena_.types().master;
  const auto size = static_cast<std::int64_t>(c10::elementSize(type));
  bucket.memory = pool_.take(block.count() * size);
  arena_.set_gradients(block, bucket.memory.view(type));
}

void GradientReducer::unit_ready(int unit) {
  for (const std::size_t block : arena_.blocks_of(unit)) {
    Bucket& bucket = buckets_[bucket_of_[block]];
    check(bucket.missing > 0, "a unit was ready once too often");
    --bucket.missing;
  }
  while (next_ < buckets_.size() && buckets_[next_].missing == 0 && !buckets_[next_].is_tied) {
    start(buckets_[next_++]);
  }
}

void GradientReducer::start(Bucket& bucket) {
  if (replicate_.size() > 1) follow_up(0);
  lend(bucket);
  const Block& block = block_of(bucket);
  for (std::size_t i = block.first_parameter; i < block.last_parameter; ++i) {
    arena_.parameters()[i]->claim_zeroed();
  }
  bucket.tensor_sum.run(bucket.label + ", tensor axis" + pass_, timeout_);
  bucket.tie_sum.run(bucket.label + ", tied" + pass_, timeout_);
  bucket.started = true;
  const at::Tensor gradients = bucket.memory.defined() ? bucket.memory.view(arena_.types().master)
                                                       : arena_.gradients_of(block);
  if (gradients.numel() == 0) return;
  const std::string label = bucket.label + pass_;
  const Call call{label, Deadline::in(timeout_)};
  if (arena_.sharding().stage == 0) {
    bucket.work = shard_.all_reduce(gradients, ReduceOp::kSum, call);
    return;
  }
  std::vector<std::int64_t> counts;
  for (std::size_t i = 1; i < block.borders.size(); ++i) {
    counts.push_back(block.borders[i] - block.borders[i - 1]);
  }
  bucket.work = shard_.reduce_scatter(arena_.own_gradients_of(block), gradients, ReduceOp::kSum,
                                      call, counts);
}

void GradientReducer::follow_up(std::size_t but_last) {
  std::size_t started = next_;
  while (started > followed_ && !buckets_[started - 1].started) --started;
  for (; followed_ + but_last < started; ++followed_) replicate(buckets_[followed_]);
}

void GradientReducer::replicate(Bucket& bucket) {
  bucket.work.wait();
  bucket.work = Work();
  if (bucket.memory.defined()) {
    arena_.set_gradients(block_of(bucket), {});
    pool_.give_back(bucket.memory);
    bucket.memory = at::Tensor();
  }
  const at::Tensor own = arena_.own_gradients_of(block_of(bucket));
  if (own.numel() > 0) {
    bucket.work =
        replicate_.all_reduce(own, ReduceOp::kSum, {bucket.label + pass_, Deadline::in(timeout_)});
  }
}

void GradientReducer::finish() {
  while (next_ < buckets_.size()) start(buckets_[next_++]);
  follow_up(0);
  for (const Bucket& bucket : buckets_) bucket.work.wait();
}

std::vector<std::size_t> GradientReducer::order() const {
  std::vector<std::size_t> blocks;
  for (const Bucket& bucket : buckets_) blocks.push_back(bucket.block);
  return blocks;
}

std::int64_t GradientReducer::buffer_bytes() const {
  std::int64_t bytes = pool_.bytes();
  for (const Bucket& bucket : buckets_) {
    bytes += bucket.tensor_sum.bytes() + bucket.tie_sum.bytes();
  }
  return bytes;
}

}  // namespace troika
