#include <ATen/ATen.h>
#include <troika/sync/compression_state.h>

namespace troika {
namespace {

constexpr const char* kReplicas = "compress.replicas";

std::string sum_name(const std::string& parameter) {
  return "compress.error." + parameter;
}

std::string factor_name(const std::string& parameter) {
  return "compress.factor." + parameter;
}

// Returns the errors of all parts end to end.
at::Tensor joined(const std::vector<CompressedPart>& parts) {
  std::vector<at::Tensor> errors;
  for (const CompressedPart& part : parts) {
    if (part.error.defined()) errors.push_back(part.error);
  }
  return errors.empty() ? at::Tensor() : at::cat(errors);
}

}  // namespace

std::string CompressionState::error_name(int replica, const std::string& parameter) const {
  return kind_ + "." + std::to_string(replica) + "." + sum_name(parameter);
}

void CompressionState::save(StateDict& state, const std::vector<CompressedPart>& parts,
                            const Call& call) const {
  const at::Tensor sums = joined(parts);
  if (sums.defined()) replicas_.all_reduce(sums, ReduceOp::kSum, call).wait();
  const bool is_first = replicas_.rank() == 0;
  std::int64_t begin = 0;
  for (const CompressedPart& part : parts) {
    if (part.error.defined()) {
      state.add(error_name(replicas_.rank(), part.parameter), part.shard, part.error);
      ShardDescriptor shared = part.shard;
      if (!is_first) shared.owned = 0;
      state.add(sum_name(part.parameter), shared, sums.narrow(0, begin, part.error.numel()));
      begin += part.error.numel();
    }
    if (part.factor.defined()) {
      state.add(factor_name(part.parameter), ShardDescriptor::whole(part.factor.sizes(), is_first),
                part.factor.view({-1}));
    }
  }
  if (!parts.empty()) state.set(kReplicas, std::int64_t{replicas_.size()});
}

void CompressionState::add_places(StateDict& state, const std::vector<CompressedPart>& parts,
                                  const HasTensor& has) const {
  const int replicas = replicas_.size();
  for (const CompressedPart& part : parts) {
    const auto add = [&](const std::string& name, ShardDescriptor shard, const at::Tensor& values) {
      if (!values.defined() || !has(name)) return;
      shard.owned = 0;
      state.add(name, shard, values.view({-1}));
    };
    const bool is_same =
        has(error_name(replicas - 1, part.parameter)) && !has(error_name(replicas, part.parameter));
    add(is_same ? error_name(replicas_.rank(), part.parameter) : sum_name(part.parameter),
        part.shard, part.error);
    if (part.factor.defined()) {
      add(factor_name(part.parameter), ShardDescriptor::whole(part.factor.sizes(), false),
          part.factor);
    }
  }
}

void CompressionState::load(const StateDict& state,
                            const std::vector<CompressedPart>& parts) const {
  if (!state.numbers().contains(kReplicas)) return;
  if (state.integer(kReplicas) == replicas_.size()) return;
  for (const CompressedPart& part : parts) {
    if (part.error.defined()) at::Tensor(part.error).div_(replicas_.size());
  }
}

}  // namespace troika
