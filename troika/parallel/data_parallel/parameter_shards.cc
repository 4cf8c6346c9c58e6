#include <troika/parallel/data_parallel/parameter_shards.h>

#include <torch/torch.h>

#include <algorithm>

#include <troika/nn/module_tensors.h>

namespace troika::detail {

ParameterShards::ParameterShards(std::span<GradientSlot> slots, std::span<ModuleBucket> buckets,
                                 Session session)
    : slots_(slots), buckets_(buckets), session_(std::move(session)) {
  for (GradientSlot& slot : slots_) copy_values_into_bucket(slot);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const GradientSlot& slot = slots_[i];
    const ModuleBucket& bucket = buckets_[slot.bucket];
    const std::int64_t begin = std::max(slot.offset, bucket.own_begin) - bucket.own_begin;
    const std::int64_t end =
        std::min(slot.offset + slot.parameter.numel() - bucket.own_begin, bucket.own.numel());
    if (begin >= end) continue;
    Shard& shard = shards_.emplace_back();
    shard.slot = i;
    shard.values = leaf_on(bucket.own_values.narrow(0, begin, end - begin));
    shard.values.requires_grad_(true);
    shard.gradient = leaf_on(bucket.own.narrow(0, begin, end - begin));
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

void ParameterShards::publish_gradients(std::span<const std::int32_t> used) {
  for (Shard& shard : shards_) {
    const bool has = used.empty() || used[shard.slot] > 0;
    shard.values.mutable_grad() = has ? shard.gradient : at::Tensor();
  }
  for (const GradientSlot& slot : slots_) slot.parameter.mutable_grad() = at::Tensor();
}

double ParameterShards::sum_of_squares() const {
  double sum = 0;
  for (const Shard& shard : shards_) {
    const at::Tensor& gradient = shard.values.grad();
    if (gradient.defined()) sum += gradient.to(at::kDouble).square().sum().item<double>();
  }
  return sum;
}

void ParameterShards::scale_gradients(double factor) {
  for (const Shard& shard : shards_) {
    if (shard.values.grad().defined()) shard.values.mutable_grad().mul_(factor);
  }
}

void ParameterShards::gather() {
  std::vector<Work> works;
  for (const ModuleBucket& bucket : buckets_) {
    works.push_back(session_.world().all_gather(
        bucket.values, bucket.own_values, session_.call("values of parameters"), bucket.counts));
  }
  for (const Work& work : works) work.wait();
  for (const GradientSlot& slot : slots_) slot.parameter.unsafeGetTensorImpl()->bump_version();
}

}  // namespace troika::detail
