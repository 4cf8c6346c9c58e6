#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/parallel/data/gradient_reducer.h>

namespace troika {

GradientReducer::GradientReducer(Arena& arena, Group group, BucketSizes sizes)
    : arena_(arena), group_(std::move(group)) {
  const int units = arena.units();
  bucket_of_.resize(static_cast<std::size_t>(units));
  parameters_of_.resize(static_cast<std::size_t>(units));
  for (const auto& parameter : arena.parameters()) {
    parameters_of_[static_cast<std::size_t>(parameter->spec().unit)].push_back(parameter.get());
  }
  std::int64_t bytes = 0, limit = 0;
  for (int unit = units; unit-- > 0;) {
    if (bytes >= limit) {
      limit = buckets_.empty() ? sizes.first_bytes : sizes.bytes;
      bytes = 0;
      Bucket& bucket = buckets_.emplace_back();
      bucket.label = "gradient bucket " + std::to_string(buckets_.size());
      bucket.last_unit = unit + 1;
    }
    buckets_.back().first_unit = unit;
    bucket_of_[static_cast<std::size_t>(unit)] = static_cast<int>(buckets_.size()) - 1;
    if (!parameters_of_[static_cast<std::size_t>(unit)].empty()) ++buckets_.back().contributors;
    bytes += static_cast<std::int64_t>(arena.gradients(unit, unit + 1).nbytes());
  }
}

void GradientReducer::begin_step(int microbatches, Seconds timeout) {
  timeout_ = timeout;
  arena_.release_gradients();
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.contributors * microbatches;
    bucket.started = false;
    bucket.work = Work();
  }
}

void GradientReducer::unit_ready(int unit) {
  if (parameters_of_[static_cast<std::size_t>(unit)].empty()) return;
  Bucket& bucket = buckets_[static_cast<std::size_t>(bucket_of_[static_cast<std::size_t>(unit)])];
  check(bucket.missing > 0, "a unit was ready once too often");
  if (--bucket.missing == 0) start(bucket);
}

void GradientReducer::start(Bucket& bucket) {
  for (int unit = bucket.first_unit; unit < bucket.last_unit; ++unit) {
    for (Parameter* parameter : parameters_of_[static_cast<std::size_t>(unit)]) {
      parameter->claim_zeroed();
    }
  }
  bucket.started = true;
  const at::Tensor gradients = arena_.gradients(bucket.first_unit, bucket.last_unit);
  if (gradients.numel() == 0) return;
  bucket.work =
      group_.all_reduce(gradients, ReduceOp::kSum, {bucket.label, Deadline::in(timeout_)});
}

void GradientReducer::finish() {
  for (Bucket& bucket : buckets_) {
    if (!bucket.started) start(bucket);
  }
  for (const Bucket& bucket : buckets_) bucket.work.wait();
}

}  // namespace troika
