#include <ATen/ATen.h>
#include <troika/parallel/data/gradient_buckets.h>

#include <algorithm>
#include <map>

namespace troika::detail {
namespace {

constexpr std::int64_t kAlignment = 64;  // bytes

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t bytes_of(const GradientSlot& slot) {
  return slot.parameter.numel() * static_cast<std::int64_t>(c10::elementSize(slot.dtype));
}

// A tensor of its own on the arena's memory, which it keeps alive. Not a view to autograd: views
// share a version counter, and refuse detach_(), which zero_grad() calls.
at::Tensor tensor_on(const at::Tensor& arena, std::int64_t offset, at::IntArrayRef sizes,
                     at::IntArrayRef strides, at::ScalarType dtype) {
  return at::from_blob(
      static_cast<std::byte*>(arena.data_ptr()) + offset, sizes, strides,
      [arena](void*) { (void)arena; }, at::TensorOptions(dtype));
}

// What AccumulateGrad gives a gradient: the parameter's strides where they are dense, else rows.
std::vector<std::int64_t> strides_of_gradient(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return at::empty(parameter.sizes(), at::TensorOptions(at::kMeta)).strides().vec();
}

template <class T>
void store(void* to, const StepFacts& facts) {
  auto* values = static_cast<T*>(to);
  values[0] = static_cast<T>(facts.weight);
  values[1] = static_cast<T>(facts.present);
  values[2] = static_cast<T>(facts.tally);
  values[3] = static_cast<T>(facts.tally_squared);
  values[4] = static_cast<T>(facts.alarm);
}

template <class T>
StepFacts load(const void* from) {
  const auto* values = static_cast<const T*>(from);
  return {.weight = values[0],
          .present = values[1],
          .tally = values[2],
          .tally_squared = values[3],
          .alarm = values[4]};
}

}  // namespace

std::vector<std::vector<int>> GradientBuckets::plan(std::span<const GradientSlot> slots,
                                                    std::span<const int> order,
                                                    const BucketSizes& sizes) {
  struct Open {
    std::vector<int> slots;
    std::int64_t bytes = 0;
    std::size_t last = 0;  // place in `order`
  };
  std::map<at::ScalarType, Open> open;
  std::vector<Open> closed;
  for (std::size_t place = 0; place < order.size(); ++place) {
    const GradientSlot& slot = slots[static_cast<std::size_t>(order[place])];
    Open& bucket = open[slot.dtype];
    bucket.slots.push_back(order[place]);
    bucket.bytes += bytes_of(slot);
    bucket.last = place;
    if (bucket.bytes < (closed.empty() ? sizes.first_bytes : sizes.bytes)) continue;
    closed.push_back(std::move(bucket));
    open.erase(slot.dtype);
  }
  for (auto& [dtype, bucket] : open) closed.push_back(std::move(bucket));
  // A bucket can be reduced once its last gradient is ready.
  std::ranges::sort(closed, {}, &Open::last);
  std::vector<std::vector<int>> plan;
  for (Open& bucket : closed) {
    std::ranges::sort(bucket.slots);
    plan.push_back(std::move(bucket.slots));
  }
  return plan;
}

GradientBuckets::GradientBuckets(std::span<GradientSlot> slots, std::span<const int> order,
                                 const BucketSizes& sizes, Facts facts, const Group& group)
    : facts_(facts) {
  for (std::vector<int>& members : plan(slots, order, sizes)) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.label = "gradient bucket " + std::to_string(buckets_.size());
    bucket.slots = std::move(members);
  }
  lay_out(slots, group);
}

void GradientBuckets::lay_out(std::span<GradientSlot> slots, const Group& group) {
  std::vector<std::int64_t> offsets, ends;
  std::int64_t end = 0;
  for (const Bucket& bucket : buckets_) {
    for (const int index : bucket.slots) {
      offsets.push_back(end);
      end += aligned(bytes_of(slots[static_cast<std::size_t>(index)]));
    }
    ends.push_back(end);
  }
  const bool in_padding = facts_ == Facts::kInPadding;
  const std::int64_t facts_at = end;
  end += aligned(StepFacts::kCount * static_cast<std::int64_t>(sizeof(double)));
  if (in_padding) ends.back() = end;
  arena_ = group.allocate(static_cast<std::size_t>(end));

  std::size_t next = 0;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    const at::ScalarType dtype = slots[static_cast<std::size_t>(bucket.slots.front())].dtype;
    const auto elements = (ends[i] - begin) / static_cast<std::int64_t>(c10::elementSize(dtype));
    bucket.flat = tensor_on(arena_, begin, {elements}, {1}, dtype);
    for (const int index : bucket.slots) {
      GradientSlot& slot = slots[static_cast<std::size_t>(index)];
      slot.bucket = static_cast<int>(i);
      slot.view = tensor_on(arena_, offsets[next++], slot.parameter.sizes(),
                            strides_of_gradient(slot.parameter), dtype);
    }
    begin = ends[i];
  }
  facts_data_ = static_cast<std::byte*>(arena_.data_ptr()) + facts_at;
  if (in_padding) {
    facts_dtype_ = buckets_.back().flat.scalar_type();
  } else {
    facts_apart_ = tensor_on(arena_, facts_at, {StepFacts::kCount}, {1}, at::kDouble);
  }
}

void GradientBuckets::write(const StepFacts& facts) {
  facts_dtype_ == at::kFloat ? store<float>(facts_data_, facts) : store<double>(facts_data_, facts);
}

StepFacts GradientBuckets::read() const {
  return facts_dtype_ == at::kFloat ? load<float>(facts_data_) : load<double>(facts_data_);
}

}  // namespace troika::detail
