#include <ATen/ATen.h>
#include <troika/nn/module_tensors.h>
#include <troika/parallel/data_parallel/gradient_buckets.h>
#include <troika/sync/gradients/shard_counts.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <vector>

namespace troika::detail {
namespace {

constexpr std::int64_t kAlignment = 64;  // bytes
// A shard begins at a whole number of these: two vectors of the narrowest type on the widest
// machine, which is what LibTorch's loops take at a time, so that an update of a shard treats each
// element as an update of the whole does.
constexpr std::int64_t kShardAlignment = 64;

std::int64_t size_of(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

std::int64_t byte_size(const ReducedBucket& bucket) {
  return bucket.elements * size_of(bucket.dtype);
}

// The place of a parameter in a tensor that is laid out as its bucket.
at::Tensor view_of(const GradientSlot& slot, const at::Tensor& flat) {
  return tensor_on(flat, slot.offset * size_of(slot.dtype), slot.parameter.sizes(), slot.strides,
                   slot.dtype);
}

// Its dimensions, the outermost in memory first.
std::vector<std::int64_t> shape_in_memory(const GradientSlot& slot) {
  std::vector<std::size_t> dims(slot.sizes.size());
  std::iota(dims.begin(), dims.end(), 0);
  std::ranges::stable_sort(dims, std::greater(),
                           [&](std::size_t dim) { return slot.strides[dim]; });
  std::vector<std::int64_t> shape;
  for (const std::size_t dim : dims) shape.push_back(slot.sizes[dim]);
  return shape;
}

// Of equal shards, but for rounding to where a shard may begin.
std::vector<std::int64_t> even_borders(std::int64_t elements, int ranks) {
  std::vector<std::int64_t> borders;
  for (std::int64_t rank = 0; rank <= ranks; ++rank) {
    borders.push_back(elements * rank / ranks / kShardAlignment * kShardAlignment);
  }
  return borders;
}

}  // namespace

GradientBuckets::Plan GradientBuckets::plan(std::span<const GradientSlot> slots,
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
  Plan plan;
  for (Open& bucket : closed) {
    std::ranges::sort(bucket.slots);
    plan.push_back(std::move(bucket.slots));
  }
  return plan;
}

GradientBuckets::GradientBuckets(std::span<GradientSlot> slots, std::span<const std::size_t> order,
                                 const Group& group, const Options& options)
    : slots_(slots),
      options_(options),
      plan_(plan(slots, order, options.sizes)),
      own_begins_(plan_.size()) {
  place_slots();
  allocate(group);
}

// With ZeRO slots, and with them shards of parameters, begin at a whole number of kShardAlignment.
std::int64_t GradientBuckets::aligned(std::int64_t bytes, at::ScalarType dtype) const {
  const std::int64_t unit = options_.stage == 0 ? kAlignment : kShardAlignment * size_of(dtype);
  return (bytes + unit - 1) / unit * unit;
}

void GradientBuckets::place_slots() {
  for (const std::vector<std::size_t>& members : plan_) {
    ReducedBucket& bucket = gradients_.emplace_back();
    bucket.label = "gradient bucket " + std::to_string(gradients_.size());
    bucket.dtype = slots_[members.front()].dtype;
    std::int64_t end = 0;
    for (const std::size_t index : members) {
      GradientSlot& slot = slots_[index];
      slot.bucket = gradients_.size() - 1;
      slot.offset = end / size_of(bucket.dtype);
      bucket.parts.push_back({slot.offset, shape_in_memory(slot)});
      end += aligned(slot.bytes(), bucket.dtype);
    }
    bucket.elements = end / size_of(bucket.dtype);
  }
  if (facts_are_apart()) return;
  ReducedBucket& last = gradients_.back();
  options_.facts_dtype = last.dtype;
  last.elements += aligned(FactsMemory::kBytes, last.dtype) / size_of(last.dtype);
}

// One arena: whole gradients but at stage 2, and facts at its end.
void GradientBuckets::allocate(const Group& group) {
  const bool whole = options_.stage < 2;
  const bool on_host = options_.device.is_cpu();
  std::int64_t end = facts_are_apart() && on_host ? FactsMemory::kBytes : 0;
  for (const ReducedBucket& bucket : gradients_) end += whole ? byte_size(bucket) : 0;
  arena_ = group.allocate(static_cast<std::size_t>(end), options_.device);
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    ReducedBucket& bucket = gradients_[i];
    if (whole) {
      bucket.gradients = tensor_on(arena_, begin, {bucket.elements}, {1}, bucket.dtype);
      begin += byte_size(bucket);
      set_views(i, bucket.gradients);
    }
    if (options_.stage > 0) cut_into_shards(i, group);
  }
  if (!on_host) host_facts_ = group.allocate(FactsMemory::kBytes);
  const at::Tensor& memory = on_host ? arena_ : host_facts_;
  const std::int64_t facts_at = memory.numel() - FactsMemory::kBytes;
  facts_ = {static_cast<std::byte*>(memory.data_ptr()) + facts_at, options_.facts_dtype};
  if (!facts_are_apart()) return;
  separate_facts_ = tensor_on(memory, facts_at, {StepFacts::kCount}, {1}, options_.facts_dtype);
}

void GradientBuckets::cut_into_shards(std::size_t index, const Group& group) {
  ReducedBucket& bucket = gradients_[index];
  const std::vector<std::int64_t> borders = even_borders(bucket.elements, group.size());
  bucket.counts = shard_counts(borders);
  const auto rank = static_cast<std::size_t>(group.rank());
  const std::int64_t begin = borders[rank], own = bucket.counts[rank];
  const auto make = [&](std::int64_t elements) {
    return group
        .allocate(static_cast<std::size_t>(elements * size_of(bucket.dtype)), options_.device)
        .view(bucket.dtype);
  };
  ShardedBucket& values = values_.emplace_back();
  values.label = "values of parameters";
  values.counts = bucket.counts;
  values.whole = make(bucket.elements);
  values.own = values.whole.narrow(0, begin, own);
  bucket.shard = options_.stage < 2 ? bucket.gradients.narrow(0, begin, own) : make(own);
  own_begins_[index] = begin;
  for (const std::size_t slot : plan_[index]) {
    slots_[slot].value = view_of(slots_[slot], values.whole);
  }
}

void GradientBuckets::set_views(std::size_t bucket, const at::Tensor& gradients) {
  for (const std::size_t index : plan_[bucket]) {
    GradientSlot& slot = slots_[index];
    if (gradients.defined()) {
      slot.view = view_of(slot, gradients);
      continue;
    }
    at::Tensor& gradient = slot.parameter.mutable_grad();
    if (gradient.is_same(slot.view)) gradient = at::Tensor();
    slot.view = at::Tensor();
  }
}

std::int64_t GradientBuckets::bytes() const {
  std::int64_t bytes = arena_.numel();
  for (const ShardedBucket& bucket : values_) {
    bytes += static_cast<std::int64_t>(bucket.whole.nbytes());
  }
  if (options_.stage < 2) return bytes;
  for (const ReducedBucket& bucket : gradients_) {
    bytes += static_cast<std::int64_t>(bucket.shard.nbytes());
  }
  return bytes;
}

}  // namespace troika::detail
