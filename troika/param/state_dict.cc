#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/slice_runs.h>
#include <troika/base/text.h>
#include <troika/param/state_dict.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace troika {
namespace {

SliceStrides strides_of(const ShardDescriptor& shard) {
  return {shard.shape, shard.slice.dim, shard.slice.begin, shard.slice.end};
}

void check_whole(const ShardDescriptor& shard, const at::Tensor& whole) {
  check(whole.sizes() == at::IntArrayRef(shard.shape) && whole.is_contiguous(),
        "a whole tensor of another shape than its shards say");
}

}  // namespace

ShardDescriptor ShardDescriptor::whole(at::IntArrayRef shape, bool owned) {
  ShardDescriptor shard;
  shard.shape = shape.vec();
  shard.slice = {0, 0, shape.empty() ? 1 : shape.front()};
  shard.count = c10::multiply_integers(shape);
  shard.owned = owned ? shard.count : 0;
  return shard;
}

ShardDescriptor ShardDescriptor::of(const Arena& arena, const LocalShard& local) {
  const ParameterSpec& spec = arena.parameters()[local.parameter]->spec();
  const Sharding& sharding = arena.sharding();
  ShardDescriptor shard = whole(spec.shape, false);
  if (spec.slice) shard.slice = *spec.slice;
  shard.begin = local.begin;
  shard.count = local.count;
  const bool counts = sharding.replicate.rank() == 0 &&
                      (sharding.stage > 0 || sharding.shard.rank() == 0) && !spec.tied_replica;
  if (!counts) return shard;
  const std::int64_t owned = spec.owned.value_or(spec.local_count());
  shard.owned = std::clamp<std::int64_t>(owned - local.begin, 0, local.count);
  return shard;
}

bool ShardDescriptor::owns_all() const {
  return owned == std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

void copy_into_whole(const ShardDescriptor& shard, const at::Tensor& part,
                     const at::Tensor& whole) {
  check_whole(shard, whole);
  const at::Tensor flat = whole.view({-1});
  for_each_run(strides_of(shard), shard.begin, part.numel(),
               [&](std::int64_t to, std::int64_t from, std::int64_t length) {
                 flat.narrow(0, to, length).copy_(part.narrow(0, from, length));
               });
}

void copy_from_whole(const ShardDescriptor& shard, const at::Tensor& whole,
                     const at::Tensor& part) {
  check_whole(shard, whole);
  const at::Tensor flat = whole.view({-1});
  for_each_run(strides_of(shard), shard.begin, part.numel(),
               [&](std::int64_t from, std::int64_t to, std::int64_t length) {
                 part.narrow(0, to, length).copy_(flat.narrow(0, from, length));
               });
}

void StateDict::add(std::string name, ShardDescriptor shard, at::Tensor tensor) {
  check(tensor.dim() == 1 && tensor.numel() == shard.count,
        "a part that is not as it is described");
  tensors_.push_back({std::move(name), std::move(shard), std::move(tensor)});
}

std::int64_t StateDict::integer(const std::string& name) const {
  const auto found = numbers_.find(name);
  if (found != numbers_.end()) {
    if (const auto* value = std::get_if<std::int64_t>(&found->second)) return *value;
  }
  throw DataError("the state has no whole number " + quote(name));
}

double StateDict::number(const std::string& name) const {
  const auto found = numbers_.find(name);
  if (found != numbers_.end()) {
    if (const auto* value = std::get_if<double>(&found->second)) return *value;
  }
  throw DataError("the state has no number " + quote(name));
}

}  // namespace troika
