#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/parallel/data_parallel/replica_tensors.h>
#include <troika/param/flat_copies.h>
#include <troika/session/consensus.h>

#include <map>
#include <sstream>
#include <string>

namespace troika {

ReplicaTensors ReplicaTensors::of(const torch::nn::Module& module) {
  ReplicaTensors tensors;
  for (const auto& each : module.named_parameters()) {
    tensors.parameters.push_back(each.value());
    tensors.names.push_back(each.key());
  }
  for (const auto& each : module.named_buffers()) {
    tensors.buffers.push_back(each.value());
    tensors.names.push_back(each.key());
  }
  return tensors;
}

namespace detail {
namespace {

std::string description_of(const ReplicaTensors& tensors) {
  std::ostringstream text;
  std::size_t place = 0;
  const auto add = [&](const char* kind, const at::Tensor& tensor) {
    text << (place < tensors.names.size() ? tensors.names[place] : kind) << " " << tensor.sizes()
         << " " << tensor.scalar_type() << (tensor.requires_grad() ? "" : " frozen") << "\n";
    ++place;
  };
  for (const at::Tensor& each : tensors.parameters) add("parameter", each);
  for (const at::Tensor& each : tensors.buffers) add("buffer", each);
  return text.str();
}

// The first line that is not the same.
std::string first_difference(const std::string& one, const std::string& other) {
  std::istringstream a(one), b(other);
  for (;;) {
    std::string of_one, of_other;
    const bool more = static_cast<bool>(std::getline(a, of_one));
    if (!std::getline(b, of_other) && !more) return "";
    if (of_one != of_other) return "'" + of_one.append("' and '").append(of_other) + "'";
  }
}

}  // namespace

at::Tensor ReplicaBlock::read() const {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& each : parameters) parts.push_back(each.detach().view({-1}).to(type));
  return at::cat(parts);
}

void ReplicaBlock::write(const at::Tensor& values) const {
  std::int64_t begin = 0;
  for (const at::Tensor& each : parameters) {
    each.view({-1}).copy_(values.narrow(0, begin, each.numel()));
    begin += each.numel();
  }
}

std::vector<ReplicaBlock> agree_on(const ReplicaTensors& tensors, const Session& session,
                                   std::string_view what) {
  const torch::NoGradGuard no_grad;
  const std::string own = description_of(tensors);
  if (const auto difference = find_difference(session, own, "modules")) {
    throw UsageError(
        "the modules of rank 0 and " + ranks_in_words(difference->theirs.ranks) +
            " differ: " + first_difference(difference->of_rank_zero, difference->theirs.text),
        "every rank builds the same module");
  }
  std::map<at::ScalarType, ReplicaBlock> by_type;
  const auto broadcast = [&](const at::Tensor& tensor, std::string_view label) {
    if (!tensor.is_contiguous()) {
      throw UsageError(std::string(what) + " takes parameters and buffers that are contiguous",
                       "parameter.set_data(parameter.contiguous()) makes one so");
    }
    session.world().broadcast(tensor.detach(), 0, session.call(label)).wait();
  };
  for (const at::Tensor& each : tensors.parameters) {
    broadcast(each, "parameters");
    if (!each.requires_grad()) continue;
    const at::ScalarType type = each.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    by_type[type].type = type;
    by_type[type].parameters.push_back(each);
  }
  for (const at::Tensor& each : tensors.buffers) broadcast(each, "buffers");
  std::vector<ReplicaBlock> blocks;
  for (auto& [type, block] : by_type) blocks.push_back(std::move(block));
  return blocks;
}

void average_buffers(const ReplicaTensors& tensors, const Session& session) {
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& each : tensors.buffers) {
    if (each.is_floating_point()) buffers.push_back(each);
  }
  const FlatCopies means(buffers);
  for (const at::Tensor& flat : means.flats()) {
    session.world().all_reduce(flat, ReduceOp::kAverage, session.call("buffers")).wait();
  }
  means.write_to(buffers);
}

}  // namespace detail
}  // namespace troika
