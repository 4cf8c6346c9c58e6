#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/checkpoint/state_gatherer.h>
#include <troika/comm/gather.h>
#include <troika/device/device.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace troika {
namespace {

constexpr std::int64_t kFields = 6;

}  // namespace

StateGatherer::StateGatherer(Group world, std::vector<StateSpec> whole,
                             std::span<const StateTensor> own, Seconds timeout)
    : world_(std::move(world)), timeout_(timeout), whole_(std::move(whole)) {
  exchange_parts(own);
}

void StateGatherer::exchange_parts(std::span<const StateTensor> own) {
  std::vector<std::int64_t> fields;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const ShardDescriptor& shard = own[i].shard;
    if (shard.owned == 0) continue;
    const auto found = std::ranges::lower_bound(whole_, own[i].name, {}, &StateSpec::name);
    check(found != whole_.end() && found->name == own[i].name, "a part of no tensor");
    owned_.push_back(i);
    for (const std::int64_t field :
         {static_cast<std::int64_t>(found - whole_.begin()), std::int64_t{shard.slice.dim},
          shard.slice.begin, shard.slice.end, shard.begin, shard.owned}) {
      fields.push_back(field);
    }
  }
  const GatheredElements all = gather_elements(world_, at::tensor(fields, at::kLong),
                                               {"shards of all ranks", Deadline::in(timeout_)});
  const auto* in = all.elements.const_data_ptr<std::int64_t>();
  for (const std::int64_t count : all.counts) {
    std::vector<OwnedPart>& parts = parts_.emplace_back();
    for (std::int64_t i = 0; i < count / kFields; ++i, in += kFields) {
      const auto whole = static_cast<std::size_t>(in[0]);
      parts.push_back(
          {whole,
           {whole_[whole].shape, {static_cast<int>(in[1]), in[2], in[3]}, in[4], in[5], in[5]}});
    }
  }
}

std::vector<at::ScalarType> StateGatherer::types() const {
  std::vector<at::ScalarType> types;
  for (const StateSpec& spec : whole_) {
    if (std::ranges::count(types, spec.type) == 0) types.push_back(spec.type);
  }
  return types;
}

at::Tensor StateGatherer::flatten(std::span<const at::Tensor> own, at::ScalarType type) const {
  const auto& parts = parts_[static_cast<std::size_t>(world_.rank())];
  std::vector<at::Tensor> values;
  for (std::size_t i = 0; i < owned_.size(); ++i) {
    if (whole_[parts[i].whole].type != type) continue;
    if (world_.rank() == 0 && parts[i].shard.owns_all()) continue;  // stays where it is
    values.push_back(own[owned_[i]].narrow(0, 0, parts[i].shard.count));
  }
  return values.empty() ? at::empty({0}, type) : to_host(at::cat(values));
}

at::Tensor StateGatherer::values_of(int peer, at::ScalarType type, const at::Tensor& own,
                                    const Call& call) const {
  if (peer == 0) return own;
  std::int64_t elements = 0;
  for (const OwnedPart& part : parts_[static_cast<std::size_t>(peer)]) {
    if (whole_[part.whole].type == type) elements += part.shard.count;
  }
  at::Tensor values = at::empty({elements}, type);
  if (elements == 0) return values;
  const Transfer receive{Transfer::Direction::kReceive, peer, values};
  // One peer at a time: rank 0 has the values of one rank beside the whole model.
  world_.exchange({&receive, 1}, call).wait();
  return values;
}

std::vector<NamedTensor> StateGatherer::gather(std::span<const at::Tensor> own,
                                               std::string_view label) const {
  const auto call = [&] { return Call{label, Deadline::in(timeout_)}; };
  std::vector<NamedTensor> tensors;
  if (world_.rank() == 0) {
    for (const StateSpec& spec : whole_) tensors.push_back({spec.name, {}});
    for (std::size_t i = 0; i < owned_.size(); ++i) {
      const OwnedPart& part = parts_[0][i];
      if (part.shard.owns_all()) {
        tensors[part.whole].tensor = to_host(own[owned_[i]]).view(part.shard.shape);
      }
    }
    for (std::size_t i = 0; i < whole_.size(); ++i) {
      if (tensors[i].tensor.defined()) continue;
      tensors[i].tensor = at::zeros(whole_[i].shape, whole_[i].type);
    }
  }
  for (const at::ScalarType type : types()) {
    const at::Tensor flat = flatten(own, type);
    if (world_.rank() != 0) {
      const Transfer send{Transfer::Direction::kSend, 0, flat};
      if (flat.numel() > 0) world_.exchange({&send, 1}, call()).wait();
      continue;
    }
    for (int peer = 0; peer < world_.size(); ++peer) {
      const at::Tensor values = values_of(peer, type, flat, call());
      std::int64_t begin = 0;
      for (const OwnedPart& part : parts_[static_cast<std::size_t>(peer)]) {
        if (whole_[part.whole].type != type || (peer == 0 && part.shard.owns_all())) continue;
        copy_into_whole(part.shard, values.narrow(0, begin, part.shard.count),
                        tensors[part.whole].tensor);
        begin += part.shard.count;
      }
    }
  }
  return tensors;
}

}  // namespace troika
