#include <ATen/ATen.h>
#include <troika/base/random.h>
#include <troika/compress/compressor.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace troika::detail {

at::ScalarType Compressor::type_of(const GradientBucket& bucket) {
  return bucket.gradients.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// An entry of other parts is of buckets that have been cut anew.
Compressor::Entry& Compressor::entry_of(const GradientBucket& bucket) {
  const auto index = static_cast<std::size_t>(bucket.index);
  if (entries_.size() <= index) entries_.resize(index + 1);
  Entry& entry = entries_[index];
  std::vector<BucketPart> parts(bucket.parts.begin(), bucket.parts.end());
  if (parts.empty()) parts = {{0, {bucket.gradients.numel()}}};
  const std::int64_t elements = bucket.gradients.numel();
  const at::ScalarType type = bucket.gradients.scalar_type();
  if (entry.elements == elements && entry.type == type && entry.parts == parts) return entry;
  entry = {};
  entry.parts = std::move(parts);
  entry.elements = elements;
  entry.type = type;
  if (has_feedback()) {
    const at::TensorOptions options = bucket.gradients.options().dtype(type_of(bucket));
    entry.now.error = at::zeros({entry.elements}, options);
    entry.next.error = at::empty_like(entry.now.error);
  }
  prepare(bucket, entry);
  return entry;
}

at::Tensor Compressor::buffer(const GradientBucket& bucket, Entry& entry, std::size_t which,
                              std::int64_t elements, at::ScalarType type) {
  const std::int64_t bytes = elements * static_cast<std::int64_t>(c10::elementSize(type));
  at::Tensor& wire = entry.wire[which];
  if (!wire.defined() || wire.numel() != bytes) {
    wire = bucket.group->allocate(static_cast<std::size_t>(bytes), bucket.gradients.device());
  }
  return wire.view(type);
}

Work Compressor::start(const GradientBucket& bucket) {
  const at::NoGradGuard no_autograd;
  if (bucket.gradients.numel() == 0) return {};
  Entry& entry = entry_of(bucket);
  if (entry.pending) {
    std::swap(entry.now, entry.next);
    // Nothing has told whether the step was applied: what was lost to an overflow must not stay.
    if (entry.now.error.defined()) entry.now.error.nan_to_num_(0, 0, 0);
    for (at::Tensor& factor : entry.now.factors) {
      if (factor.defined()) factor.nan_to_num_(0, 0, 0);
    }
  }
  entry.pending = true;
  entry.next.rounds = entry.now.rounds + 1;
  if (!has_feedback()) return send(bucket, entry, bucket.gradients.to(type_of(bucket)));
  at::add_out(entry.next.error, entry.now.error, bucket.gradients);
  return send(bucket, entry, entry.next.error);
}

void Compressor::finish(const GradientBucket& bucket) {
  const at::NoGradGuard no_autograd;
  if (bucket.gradients.numel() == 0) return;
  Entry& entry = entry_of(bucket);
  if (bucket.gradients.scalar_type() == type_of(bucket)) {
    return receive(bucket, entry, bucket.gradients);
  }
  const at::Tensor average = at::zeros_like(bucket.gradients, type_of(bucket));
  receive(bucket, entry, average);
  bucket.gradients.copy_(average);
}

void Compressor::end_step(bool applied) {
  for (Entry& entry : entries_) {
    if (std::exchange(entry.pending, false) && applied) std::swap(entry.now, entry.next);
  }
}

BucketMemory* Compressor::memory(const GradientBucket& bucket) {
  return &entry_of(bucket).now;
}

std::int64_t share_of(double fraction, std::int64_t elements) {
  const double share = std::ceil(fraction * static_cast<double>(elements));
  return std::clamp(static_cast<std::int64_t>(share), std::int64_t{1}, elements);
}

std::uint64_t draw_key(std::uint64_t seed, std::string_view what, int bucket) {
  return stream_key(seed, std::string(what) + " of bucket " + std::to_string(bucket));
}

}  // namespace troika::detail
