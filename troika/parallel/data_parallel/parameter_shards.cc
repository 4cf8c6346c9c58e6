#include <troika/parallel/data_parallel/parameter_shards.h>

#include <torch/torch.h>
#include <troika/base/error.h>

#include <algorithm>

#include <troika/nn/module_tensors.h>

namespace troika::detail {

ParameterShards::ParameterShards(std::span<GradientSlot> slots, const GradientBuckets& buckets,
                                 BucketReducer& reducer, const Session& session)
    : slots_(slots),
      reducer_(reducer),
      gatherer_(buckets.values(), session.world(), session.timeout()) {
  for (GradientSlot& slot : slots_) copy_values_into_bucket(slot);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const GradientSlot& slot = slots_[i];
    const at::Tensor& values = buckets.values()[slot.bucket].own;
    const at::Tensor& gradients = buckets.gradients()[slot.bucket].shard;
    const std::int64_t own_begin = buckets.own_begin(slot.bucket);
    const std::int64_t begin = std::max(slot.offset, own_begin) - own_begin;
    const std::int64_t end =
        std::min(slot.offset + slot.parameter.numel() - own_begin, values.numel());
    if (begin >= end) continue;
    Shard& shard = shards_.emplace_back();
    shard.slot = i;
    shard.begin = own_begin + begin - slot.offset;
    shard.values = leaf_on(values.narrow(0, begin, end - begin));
    shard.values.requires_grad_(true);
    shard.gradient = leaf_on(gradients.narrow(0, begin, end - begin));
  }
}

void ParameterShards::copy_values_into_bucket(GradientSlot& slot) {
  const at::NoGradGuard no_grad;
  slot.value.copy_(slot.parameter);
  slot.parameter.set_data(slot.value);
}

std::vector<at::Tensor> ParameterShards::shards_of(std::size_t slot) const {
  std::vector<at::Tensor> found;
  for (const Shard& shard : shards_) {
    if (shard.slot == slot) found.push_back(shard.values);
  }
  return found;
}

std::vector<ParameterShard> ParameterShards::named_shards() const {
  std::vector<ParameterShard> named;
  for (const Shard& shard : shards_) {
    const GradientSlot& slot = slots_[shard.slot];
    if (!slot.parameter.is_contiguous()) {
      throw UsageError(title_of(slot) + " is not contiguous: its shards cannot be named",
                       "make it row-major before DataParallel is made, or take zero_stage = 0");
    }
    named.push_back({slot.name, shard.begin, shard.values, slot.sizes});
  }
  return named;
}

void ParameterShards::publish_gradients(std::span<const std::int32_t> used) {
  for (Shard& shard : shards_) {
    const bool has = used.empty() || used[shard.slot] > 0;
    shard.values.mutable_grad() = has ? shard.gradient : at::Tensor();
  }
  for (const GradientSlot& slot : slots_) slot.parameter.mutable_grad() = at::Tensor();
}

void ParameterShards::drop_gradients() {
  reducer_.drop_gradients();
  for (const GradientSlot& slot : slots_) slot.parameter.mutable_grad() = at::Tensor();
}

double ParameterShards::sum_of_squares() const {
  at::Tensor sum;
  for (const Shard& shard : shards_) {
    const at::Tensor& gradient = shard.values.grad();
    if (!gradient.defined()) continue;
    const at::Tensor own = detail::sum_of_squares(gradient);
    sum = sum.defined() ? sum + own : own;
  }
  return sum.defined() ? sum.item<double>() : 0;
}

void ParameterShards::scale_gradients(double factor) {
  for (const Shard& shard : shards_) {
    if (shard.values.grad().defined()) shard.values.mutable_grad().mul_(factor);
  }
}

void ParameterShards::gather() {
  gatherer_.start_all();
  gatherer_.wait();
  for (const GradientSlot& slot : slots_) slot.parameter.unsafeGetTensorImpl()->bump_version();
}

}  // namespace troika::detail
