#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/param/state_dict.h>
#include <troika/server/flat_layout.h>
#include <troika/server/messages.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace troika {

using messages::Json;

namespace {

Json json_of(const std::vector<FlatLayout::Parameter>& parameters) {
  Json all = Json::array();
  for (const FlatLayout::Parameter& each : parameters) {
    all.push_back(
        {{"name", each.name}, {"shape", each.shape}, {"element_size", each.element_size}});
  }
  return all;
}

std::vector<FlatLayout::Parameter> parameters_of(const Json& json, const char* key) {
  std::vector<FlatLayout::Parameter> all;
  for (const Json& each : messages::value<std::vector<Json>>(json, key)) {
    all.push_back({messages::value<std::string>(each, "name"),
                   messages::value<std::vector<std::int64_t>>(each, "shape"),
                   messages::value<std::int64_t>(each, "element_size")});
  }
  return all;
}

const ParameterSpec& spec_of(const Arena& arena, const LocalShard& shard) {
  return arena.parameters()[shard.parameter]->spec();
}

}  // namespace

std::int64_t FlatLayout::Parameter::count() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

FlatLayout FlatLayout::of(const Arena& arena) {
  FlatLayout layout;
  for (const LocalShard& shard : arena.local_shards()) {
    const ParameterSpec& spec = spec_of(arena, shard);
    (spec.frozen ? layout.frozen : layout.trained)
        .push_back({spec.name, spec.shape, static_cast<std::int64_t>(shard.master.itemsize())});
  }
  return layout;
}

FlatLayout FlatLayout::from(std::string_view text) {
  const Json json = messages::parse(text, "layout");
  return {parameters_of(json, "trained"), parameters_of(json, "frozen")};
}

std::string FlatLayout::text() const {
  return Json({{"trained", json_of(trained)}, {"frozen", json_of(frozen)}}).dump();
}

std::int64_t FlatLayout::size() const {
  std::int64_t size = 0;
  for (const Parameter& each : trained) size += each.count();
  return size;
}

bool has_frozen(const Arena& arena) {
  return arena.trained_shards().size() < arena.local_shards().size();
}

at::Tensor frozen_values(const Arena& arena) {
  std::vector<at::Tensor> values = {at::empty({0}, at::kByte)};
  for (const LocalShard& shard : arena.local_shards().subspan(arena.trained_shards().size())) {
    values.push_back(shard.master.view({-1}).to(at::kCPU).view(at::kByte));
  }
  return at::cat(values);
}

void take_parameter(Arena& arena, const FlatLayout::Parameter& parameter, const at::Tensor& whole) {
  for (const LocalShard& shard : arena.local_shards()) {
    if (spec_of(arena, shard).name != parameter.name) continue;
    const ShardDescriptor descriptor = ShardDescriptor::of(arena, shard);
    if (descriptor.shape != parameter.shape) {
      throw DataError("the job has another parameter '" + parameter.name + "'",
                      "do all processes have the same recipe?");
    }
    const at::Tensor part = at::empty({descriptor.count}, whole.options());
    copy_from_whole(descriptor, whole.view(parameter.shape), part);
    shard.master.view({-1}).copy_(part);
  }
}

namespace {

// `bytes` may begin anywhere: the parameters before it may be of narrower types.
void take_frozen_parameter(Arena& arena, const FlatLayout::Parameter& parameter,
                           const at::Tensor& bytes) {
  for (const LocalShard& shard : arena.local_shards().subspan(arena.trained_shards().size())) {
    if (spec_of(arena, shard).name != parameter.name) continue;
    if (shard.master.itemsize() != static_cast<std::size_t>(parameter.element_size)) {
      throw DataError("the job has '" + parameter.name + "' in another precision",
                      "do all processes have the same recipe?");
    }
    return take_parameter(arena, parameter, bytes.clone().view(shard.master.scalar_type()));
  }
}

}  // namespace

void take_frozen(Arena& arena, const FlatLayout& layout, const at::Tensor& values) {
  std::int64_t begin = 0;
  for (const FlatLayout::Parameter& each : layout.frozen) {
    const std::int64_t bytes = each.bytes();
    if (begin + bytes > values.numel()) throw DataError("the job has sent too few frozen values");
    take_frozen_parameter(arena, each, values.narrow(0, begin, bytes));
    begin += bytes;
  }
}

}  // namespace troika
