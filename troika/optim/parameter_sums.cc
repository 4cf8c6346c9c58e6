#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/optim/parameter_sums.h>

#include <algorithm>

namespace troika {

ParameterSums::ParameterSums(const Arena& arena, SumGroups groups)
    : arena_(arena), groups_(std::move(groups)) {
  std::size_t chunks = 0;
  for (const auto& parameter : arena.parameters()) {
    first_chunk_.push_back(chunks);
    const std::int64_t count = parameter->spec().local_count();
    chunks += static_cast<std::size_t>((count + kChunkElements - 1) / kChunkElements);
  }
  first_chunk_.push_back(chunks);
  for (const Chunk& chunk : chunks_of(arena)) {
    chunk_index_.push_back(first_chunk_[chunk.parameter] +
                           static_cast<std::size_t>(chunk.begin / kChunkElements));
  }
  std::vector<std::string>& names = groups_.names;
  check(groups_.pipeline.size() == 1 || !names.empty(),
        "sums over a pipeline need the names of the whole model");
  if (names.empty()) {
    for (const auto& parameter : arena.parameters()) names.push_back(parameter->spec().name);
  }
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
  for (const auto& parameter : arena.parameters()) {
    const auto found = std::ranges::lower_bound(names, parameter->spec().name);
    check(found != names.end() && *found == parameter->spec().name,
          "'" + parameter->spec().name + "' is not among the names of the model");
    row_.push_back(static_cast<std::size_t>(found - names.begin()));
  }
  rows_ = names.size();
}

// Where at most one rank has another value than zero the sum is exact.
void ParameterSums::sum_over(const Group& group, std::span<double> values,
                             std::string_view label) const {
  if (group.size() == 1 || values.empty()) return;
  // Memory of its own: an operation that fails may hold on to it.
  const at::Tensor tensor = at::empty({static_cast<std::int64_t>(values.size())}, at::kDouble);
  auto* shared = tensor.mutable_data_ptr<double>();
  std::ranges::copy(values, shared);
  group.all_reduce(tensor, ReduceOp::kSum, {label, Deadline::in(groups_.timeout)}).wait();
  std::copy_n(shared, values.size(), values.begin());
}

std::vector<double> ParameterSums::by_parameter(std::span<const double> of_chunk,
                                                std::string_view label) const {
  check(of_chunk.size() == chunk_index_.size(), "a sum over other chunks than the arena's");
  std::vector<double> all(first_chunk_.back(), 0.0);
  for (std::size_t i = 0; i < chunk_index_.size(); ++i) all[chunk_index_[i]] = of_chunk[i];
  if (arena_.sharding().stage > 0) sum_over(arena_.sharding().shard, all, label);

  std::vector<double> sums(row_.size(), 0.0);
  for (std::size_t p = 0; p < sums.size(); ++p) {
    if (alike_on_tensor_ranks(p) && groups_.tensor.rank() != 0) continue;
    for (std::size_t i = first_chunk_[p]; i < first_chunk_[p + 1]; ++i) sums[p] += all[i];
  }
  sum_over(groups_.tensor, sums, label);
  return sums;
}

bool ParameterSums::on_device() const {
  bool all = true;
  for (const Group& group : groups()) all = group.carries(arena_.device()) && all;
  return all;
}

bool ParameterSums::counts(std::size_t parameter) const {
  if (arena_.parameters()[parameter]->spec().tied_replica) return false;
  return groups_.tensor.rank() == 0 || !alike_on_tensor_ranks(parameter);
}

at::Tensor ParameterSums::total_on_device(const at::Tensor& own, std::string_view label) const {
  for (const Group& group : groups()) {
    group.all_reduce(own, ReduceOp::kSum, {label, Deadline::in(groups_.timeout)}).wait();
  }
  return own;
}

std::vector<Group> ParameterSums::groups() const {
  const Group shard = arena_.sharding().stage > 0 ? arena_.sharding().shard : Group();
  return {shard, groups_.tensor, groups_.pipeline};
}

bool ParameterSums::alike_on_tensor_ranks(std::size_t parameter) const {
  const ParameterSpec& spec = arena_.parameters()[parameter]->spec();
  return !spec.slice && !spec.owned;
}

double ParameterSums::total(std::span<const double> of_chunk, std::string_view label) const {
  const std::vector<double> own = by_parameter(of_chunk, label);
  std::vector<double> rows(rows_, 0.0);
  for (std::size_t p = 0; p < own.size(); ++p) {
    if (!arena_.parameters()[p]->spec().tied_replica) rows[row_[p]] = own[p];
  }
  sum_over(groups_.pipeline, rows, label);
  double sum = 0;
  for (const double row : rows) sum += row;
  return sum;
}

}  // namespace troika
