#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/train/whole_tensors.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <utility>

namespace troika {
namespace {

// Of a tensor cut along `dim`: elements that lie together in the whole, and in the part.
struct Strides {
  Strides(const std::vector<std::int64_t>& shape, std::int64_t dim, std::int64_t extent) {
    const auto after = shape.begin() + (shape.empty() ? 0 : dim + 1);
    inner = std::accumulate(after, shape.end(), std::int64_t{1}, std::multiplies<>());
    whole = shape.empty() ? 1 : inner * shape[static_cast<std::size_t>(dim)];
    part = inner * extent;
  }
  std::int64_t inner, whole, part;
};

}  // namespace

WholeTensors::WholeTensors(const Job& job, const ModelPart& model)
    : job_(job),
      model_(model),
      alone_(job.tensor().size() == 1 && job.pipeline().size() == 1 &&
             model.arena().sharding().stage == 0) {
  if (alone_) return;
  const std::vector<OwnedRange> own = find_owned_ranges();
  const auto rows = job.gather(std::ssize(own), {"shards of all ranks", job.storage_deadline()});
  std::vector<std::int64_t> counts;
  for (const std::int64_t row : rows) counts.push_back(row * kRangeFields);

  const at::Tensor mine = at::empty({std::ssize(own), kRangeFields}, at::kLong);
  auto* out = mine.mutable_data_ptr<std::int64_t>();
  for (const OwnedRange& range : own) {
    for (const std::int64_t field : {range.parameter, range.dim, range.slice_begin, range.slice_end,
                                     range.begin, range.count}) {
      *out++ = field;
    }
  }
  const at::Tensor all =
      at::empty({std::accumulate(counts.begin(), counts.end(), std::int64_t{0})}, at::kLong);
  job.world()
      .all_gather(all, mine.flatten(), {"who holds what", job.storage_deadline()}, counts)
      .wait();
  const auto* in = all.const_data_ptr<std::int64_t>();
  for (const std::int64_t row : rows) {
    std::vector<OwnedRange>& ranges = ranges_.emplace_back();
    for (std::int64_t i = 0; i < row; ++i, in += kRangeFields) {
      ranges.push_back({in[0], in[1], in[2], in[3], in[4], in[5]});
    }
  }
}

std::vector<WholeTensors::OwnedRange> WholeTensors::find_owned_ranges() {
  std::vector<OwnedRange> ranges;
  const Arena& arena = model_.arena();
  const bool counts =
      arena.sharding().stage > 0 ? arena.sharding().replicate.rank() == 0 : job_.data().rank() == 0;
  if (!counts) return ranges;
  const auto& names = model_.parameters();
  for (std::size_t i = 0; i < arena.local_shards().size(); ++i) {
    const LocalShard& shard = arena.local_shards()[i];
    const ParameterSpec& spec = arena.parameters()[shard.parameter]->spec();
    const std::int64_t owned = spec.owned.value_or(spec.local_count());
    const std::int64_t count = std::min(shard.count, owned - shard.begin);
    if (spec.tied_replica || count <= 0) continue;
    const auto found = std::ranges::lower_bound(names, spec.name, {}, &ParameterSpec::name);
    check(found != names.end() && found->name == spec.name, "a parameter that the model has not");
    const Slice slice =
        spec.slice.value_or(Slice{0, 0, spec.shape.empty() ? 1 : spec.shape.front()});
    ranges.push_back(
        {found - names.begin(), slice.dim, slice.begin, slice.end, shard.begin, count});
    owned_shards_.push_back(i);
  }
  return ranges;
}

std::vector<NamedTensor> WholeTensors::masters() const {
  std::vector<at::Tensor> own;
  for (const std::size_t shard : owned_shards_)
    own.push_back(model_.arena().local_shards()[shard].master);
  if (!alone_) return gather(own, "parameters to rank 0");
  std::vector<NamedTensor> tensors;
  for (const auto& parameter : model_.arena().parameters()) {
    tensors.push_back({parameter->spec().name, parameter->master()});
  }
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  return tensors;
}

std::vector<NamedTensor> WholeTensors::gradients(double scale) const {
  std::vector<at::Tensor> own;
  for (const std::size_t shard : owned_shards_) {
    own.push_back(model_.arena().local_shards()[shard].gradient * scale);
  }
  if (!alone_) return gather(own, "gradients to rank 0");
  std::vector<NamedTensor> tensors;
  for (const auto& parameter : model_.arena().parameters()) {
    tensors.push_back({parameter->spec().name, parameter->gradient() * scale});
  }
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  return tensors;
}

std::vector<NamedTensor> WholeTensors::gather(const std::vector<at::Tensor>& own,
                                              std::string_view label) const {
  const at::ScalarType type = model_.arena().types().master;
  const auto rank = static_cast<std::size_t>(job_.rank());
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < own.size(); ++i) {
    parts.push_back(own[i].narrow(0, 0, ranges_[rank][i].count));
  }
  const at::Tensor flat = parts.empty() ? at::empty({0}, type) : at::cat(parts);
  if (rank != 0) {
    const Transfer send{Transfer::Direction::kSend, 0, flat};
    if (flat.numel() > 0) {
      job_.world().exchange({&send, 1}, {label, job_.storage_deadline()}).wait();
    }
    return {};
  }

  std::vector<NamedTensor> tensors;
  for (const ParameterSpec& spec : model_.parameters()) {
    tensors.push_back({spec.name, at::zeros(spec.shape, type)});
  }
  for (int peer = 0; peer < job_.size(); ++peer) {
    const auto& ranges = ranges_[static_cast<std::size_t>(peer)];
    std::int64_t elements = 0;
    for (const OwnedRange& range : ranges) elements += range.count;
    if (elements == 0) continue;
    at::Tensor values = flat;
    if (peer != 0) {
      values = at::empty({elements}, type);
      const Transfer receive{Transfer::Direction::kReceive, peer, values};
      job_.world().exchange({&receive, 1}, {label, job_.storage_deadline()}).wait();
    }
    std::int64_t begin = 0;
    for (const OwnedRange& range : ranges) {
      copy_into_whole(range, values.narrow(0, begin, range.count),
                      tensors[static_cast<std::size_t>(range.parameter)].tensor);
      begin += range.count;
    }
  }
  return tensors;
}

void WholeTensors::copy_into_whole(const OwnedRange& range, const at::Tensor& values,
                                   const at::Tensor& whole) const {
  const Strides strides(whole.sizes().vec(), range.dim, range.slice_end - range.slice_begin);
  const at::Tensor flat = whole.view({-1});
  const std::int64_t shift = range.slice_begin * strides.inner;
  // Row by row of what lies together in the part.
  for (std::int64_t done = 0; done < range.count;) {
    const std::int64_t at = range.begin + done;
    const std::int64_t length = std::min(strides.part - at % strides.part, range.count - done);
    flat.narrow(0, at / strides.part * strides.whole + shift + at % strides.part, length)
        .copy_(values.narrow(0, done, length));
    done += length;
  }
}

}  // namespace troika
