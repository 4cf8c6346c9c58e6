#include <ATen/ATen.h>
#include <troika/nn/module_tensors.h>
#include <troika/parallel/data_parallel/gradient_buckets.h>

#include <algorithm>
#include <map>

namespace troika::detail {
namespace {

constexpr std::int64_t kAlignment = 64;  // bytes
// A shard begins at a whole number of these: two vectors of the narrowest type on the widest
// machine, which is what LibTorch's loops take at a time, so that an update of a shard treats each
// element as an update of the whole does.
constexpr std::int64_t kShardAlignment = 64;
// One that is being reduced, one that is being written, one that waits for its turn.
constexpr std::size_t kUsualBuffers = 3;

std::int64_t byte_size(const ModuleBucket& bucket) {
  return bucket.elements * static_cast<std::int64_t>(c10::elementSize(bucket.dtype));
}

// The place of a parameter in a tensor that is laid out as its bucket.
at::Tensor view_of(const GradientSlot& slot, const at::Tensor& flat) {
  const auto size = static_cast<std::int64_t>(c10::elementSize(slot.dtype));
  return tensor_on(flat, slot.offset * size, slot.parameter.sizes(), slot.strides, slot.dtype);
}

}  // namespace

std::vector<std::vector<std::size_t>> GradientBuckets::plan(std::span<const GradientSlot> slots,
                                                            std::span<const std::size_t> order,
                                                            const BucketSizes& sizes) {
  struct Open {
    std::vector<std::size_t> slots;
    std::int64_t bytes = 0;
    std::size_t last = 0;  // place in `order`
  };
  std::map<at::ScalarType, Open> open;
  std::vector<Open> closed;
  for (std::size_t place = 0; place < order.size(); ++place) {
    const GradientSlot& slot = slots[order[place]];
    Open& bucket = open[slot.dtype];
    bucket.slots.push_back(order[place]);
    bucket.bytes += slot.bytes();
    bucket.last = place;
    if (bucket.bytes < (closed.empty() ? sizes.first_bytes : sizes.bytes)) continue;
    closed.push_back(std::move(bucket));
    open.erase(slot.dtype);
  }
  for (auto& [dtype, bucket] : open) closed.push_back(std::move(bucket));
  // A bucket can be reduced once its last gradient is ready.
  std::ranges::sort(closed, {}, &Open::last);
  std::vector<std::vector<std::size_t>> plan;
  for (Open& bucket : closed) {
    std::ranges::sort(bucket.slots);
    plan.push_back(std::move(bucket.slots));
  }
  return plan;
}

GradientBuckets::GradientBuckets(std::span<GradientSlot> slots, std::span<const std::size_t> order,
                                 const BucketSizes& sizes, Facts facts, const Group& group,
                                 int stage, at::ScalarType facts_dtype)
    : slots_(slots),
      stage_(stage),
      facts_(facts),
      facts_dtype_(facts_dtype),
      pool_(group, kUsualBuffers) {
  for (std::vector<std::size_t>& members : plan(slots, order, sizes)) {
    ModuleBucket& bucket = buckets_.emplace_back();
    bucket.label = "gradient bucket " + std::to_string(buckets_.size());
    bucket.slots = std::move(members);
  }
  place_slots();
  lay_out(group);
}

// With ZeRO slots, and with them shards of parameters, begin at a whole number of kShardAlignment.
std::int64_t GradientBuckets::aligned(std::int64_t bytes, at::ScalarType dtype) const {
  const auto size = static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::int64_t unit = stage_ == 0 ? kAlignment : kShardAlignment * size;
  return (bytes + unit - 1) / unit * unit;
}

void GradientBuckets::place_slots() {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    ModuleBucket& bucket = buckets_[i];
    bucket.dtype = slots_[bucket.slots.front()].dtype;
    const auto size = static_cast<std::int64_t>(c10::elementSize(bucket.dtype));
    std::int64_t end = 0;
    for (const std::size_t index : bucket.slots) {
      GradientSlot& slot = slots_[index];
      slot.bucket = i;
      slot.offset = end / size;
      end += aligned(slot.bytes(), bucket.dtype);
    }
    bucket.elements = end / size;
  }
  if (facts_ == Facts::kInPadding) {
    ModuleBucket& last = buckets_.back();
    facts_dtype_ = last.dtype;
    const auto size = static_cast<std::int64_t>(c10::elementSize(last.dtype));
    last.elements += aligned(FactsMemory::kBytes, last.dtype) / size;
  }
}

void GradientBuckets::lay_out(const Group& group) {
  std::int64_t end = 0;
  if (stage_ < 2) {
    for (const ModuleBucket& bucket : buckets_) end += byte_size(bucket);
  }
  const std::int64_t facts_at = facts_ == Facts::kInPadding ? end - FactsMemory::kBytes : end;
  if (facts_ == Facts::kSeparate) end += FactsMemory::kBytes;
  arena_ = group.allocate(static_cast<std::size_t>(end));
  std::int64_t begin = 0;
  for (ModuleBucket& bucket : buckets_) {
    if (stage_ < 2) {
      bucket.flat = tensor_on(arena_, begin, {bucket.elements}, {1}, bucket.dtype);
      begin += byte_size(bucket);
      set_views(bucket);
    }
    if (stage_ == 0) continue;
    cut_into_shards(bucket, group);
    for (const std::size_t index : bucket.slots) {
      GradientSlot& slot = slots_[index];
      slot.value = view_of(slot, bucket.values);
    }
  }
  facts_memory_ = {static_cast<std::byte*>(arena_.data_ptr()) + facts_at, facts_dtype_};
  if (facts_ == Facts::kSeparate) {
    separate_facts_ = tensor_on(arena_, facts_at, {StepFacts::kCount}, {1}, facts_dtype_);
  }
}

// Equal shards, but for rounding to where a shard may begin.
void GradientBuckets::cut_into_shards(ModuleBucket& bucket, const Group& group) const {
  const auto border = [&](std::int64_t rank) {
    const std::int64_t even = bucket.elements * rank / group.size();
    return even / kShardAlignment * kShardAlignment;  // all of them at the last one
  };
  for (std::int64_t rank = 0; rank < group.size(); ++rank) {
    bucket.counts.push_back(border(rank + 1) - border(rank));
  }
  bucket.own_begin = border(group.rank());
  const std::int64_t own = bucket.counts[static_cast<std::size_t>(group.rank())];
  const auto size = static_cast<std::int64_t>(c10::elementSize(bucket.dtype));
  bucket.values =
      group.allocate(static_cast<std::size_t>(bucket.elements * size)).view(bucket.dtype);
  bucket.own_values = bucket.values.narrow(0, bucket.own_begin, own);
  bucket.own = stage_ < 2 ? bucket.flat.narrow(0, bucket.own_begin, own)
                          : group.allocate(static_cast<std::size_t>(own * size)).view(bucket.dtype);
}

void GradientBuckets::set_views(const ModuleBucket& bucket) const {
  for (const std::size_t index : bucket.slots) {
    GradientSlot& slot = slots_[index];
    slot.view = view_of(slot, bucket.flat);
  }
}

void GradientBuckets::acquire_buffer(ModuleBucket& bucket) {
  if (bucket.flat.defined()) return;
  ModuleBucket* last = nullptr;
  for (ModuleBucket& other : buckets_) {
    if (!other.started || !other.flat.defined()) continue;
    if (last != nullptr && (acquire_waits_ || last->work.done())) release_buffer(*last);
    last = &other;
  }
  bucket.flat = pool_.acquire(byte_size(bucket)).view(bucket.dtype);
  set_views(bucket);
}

void GradientBuckets::release_buffer(ModuleBucket& bucket) {
  bucket.work.wait();
  bucket.work = Work();
  if (stage_ < 2 || !bucket.flat.defined()) return;
  for (const std::size_t index : bucket.slots) {
    GradientSlot& slot = slots_[index];
    at::Tensor& gradient = slot.parameter.mutable_grad();
    if (gradient.is_same(slot.view)) gradient = at::Tensor();
    slot.view = at::Tensor();
  }
  pool_.release(bucket.flat);
  bucket.flat = at::Tensor();
}

void GradientBuckets::release_all_buffers() {
  for (ModuleBucket& bucket : buckets_) release_buffer(bucket);
}

std::int64_t GradientBuckets::bytes() const {
  std::int64_t bytes = arena_.numel() + pool_.bytes();
  for (const ModuleBucket& bucket : buckets_) {
    if (stage_ > 0) bytes += static_cast<std::int64_t>(bucket.values.nbytes());
    if (stage_ > 1) bytes += static_cast<std::int64_t>(bucket.own.nbytes());
  }
  return bytes;
}

}  // namespace troika::detail
