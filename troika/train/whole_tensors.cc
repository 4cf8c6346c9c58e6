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
  const std::vector<Run> own = find_own_runs();
  const auto rows = job.gather(std::ssize(own), {"pieces of all ranks", job.storage_deadline()});
  std::vector<std::int64_t> counts;
  for (const std::int64_t row : rows) counts.push_back(row * kRunFields);

  const at::Tensor mine = at::empty({std::ssize(own), kRunFields}, at::kLong);
  auto* out = mine.mutable_data_ptr<std::int64_t>();
  for (const Run& run : own) {
    for (const std::int64_t field :
         {run.parameter, run.dim, run.slice_begin, run.slice_end, run.begin, run.count}) {
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
    std::vector<Run>& runs = runs_.emplace_back();
    for (std::int64_t i = 0; i < row; ++i, in += kRunFields) {
      runs.push_back({in[0], in[1], in[2], in[3], in[4], in[5]});
    }
  }
}

std::vector<WholeTensors::Run> WholeTensors::find_own_runs() {
  std::vector<Run> runs;
  const Arena& arena = model_.arena();
  const bool counts =
      arena.sharding().stage > 0 ? arena.sharding().replicate.rank() == 0 : job_.data().rank() == 0;
  if (!counts) return runs;
  const auto& names = model_.parameters();
  for (std::size_t i = 0; i < arena.pieces().size(); ++i) {
    const Piece& piece = arena.pieces()[i];
    const ParameterSpec& spec = arena.parameters()[piece.parameter]->spec();
    const std::int64_t owned = spec.owned.value_or(spec.local_count());
    const std::int64_t count = std::min(piece.count, owned - piece.begin);
    if (spec.copy || count <= 0) continue;
    const auto found = std::ranges::lower_bound(names, spec.name, {}, &ParameterSpec::name);
    check(found != names.end() && found->name == spec.name, "a parameter that the model has not");
    const Slice slice =
        spec.slice.value_or(Slice{0, 0, spec.shape.empty() ? 1 : spec.shape.front()});
    runs.push_back({found - names.begin(), slice.dim, slice.begin, slice.end, piece.begin, count});
    own_pieces_.push_back(i);
  }
  return runs;
}

std::vector<NamedTensor> WholeTensors::masters() const {
  std::vector<at::Tensor> own;
  for (const std::size_t piece : own_pieces_) own.push_back(model_.arena().pieces()[piece].master);
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
  for (const std::size_t piece : own_pieces_) {
    own.push_back(model_.arena().pieces()[piece].gradient * scale);
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
    parts.push_back(own[i].narrow(0, 0, runs_[rank][i].count));
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
    const auto& runs = runs_[static_cast<std::size_t>(peer)];
    std::int64_t elements = 0;
    for (const Run& run : runs) elements += run.count;
    if (elements == 0) continue;
    at::Tensor values = flat;
    if (peer != 0) {
      values = at::empty({elements}, type);
      const Transfer receive{Transfer::Direction::kReceive, peer, values};
      job_.world().exchange({&receive, 1}, {label, job_.storage_deadline()}).wait();
    }
    std::int64_t begin = 0;
    for (const Run& run : runs) {
      place(run, values.narrow(0, begin, run.count),
            tensors[static_cast<std::size_t>(run.parameter)].tensor);
      begin += run.count;
    }
  }
  return tensors;
}

void WholeTensors::place(const Run& run, const at::Tensor& values, const at::Tensor& whole) const {
  const Strides strides(whole.sizes().vec(), run.dim, run.slice_end - run.slice_begin);
  const at::Tensor flat = whole.view({-1});
  const std::int64_t shift = run.slice_begin * strides.inner;
  // Row by row of what lies together in the part.
  for (std::int64_t done = 0; done < run.count;) {
    const std::int64_t at = run.begin + done;
    const std::int64_t length = std::min(strides.part - at % strides.part, run.count - done);
    flat.narrow(0, at / strides.part * strides.whole + shift + at % strides.part, length)
        .copy_(values.narrow(0, done, length));
    done += length;
  }
}

}  // namespace troika
