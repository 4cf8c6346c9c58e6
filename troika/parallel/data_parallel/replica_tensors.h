// The tensors of a replica that is loosely coupled with others, and what all of them do with these.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/session/session.h>

#include <string>
#include <string_view>
#include <vector>

namespace torch::nn {
class Module;
}

namespace troika {

// Holds what replicas exchange: parameters and buffers. Buffers of a floating-point type (running
// statistics) become their mean. A ModulePipeline's are its parameters(), and the buffers
// of its modules().
struct ReplicaTensors {
  std::vector<at::Tensor> parameters, buffers;
  std::vector<std::string> names = {};  // of both, for messages; may be empty

  [[nodiscard]] static ReplicaTensors of(const torch::nn::Module& module);
};

namespace detail {

// The parameters of one type that are trained, end to end. Those of fewer bits than fp32 are
// exchanged as fp32: sums would lose what a step changes.
struct ReplicaBlock {
  std::vector<at::Tensor> parameters;
  at::ScalarType type = at::kFloat;

  // Return the values [elements], and put such in their places.
  [[nodiscard]] at::Tensor read() const;
  void write(const at::Tensor& values) const;
};

// Returns the blocks, after all ranks have got the values of rank 0. Collective. `what` names the
// class in errors. Throws UsageError on every rank where ranks have other shapes or types.
[[nodiscard]] std::vector<ReplicaBlock> agree_on(const ReplicaTensors& tensors,
                                                 const Session& session, std::string_view what);
// Makes floating-point buffers their mean. Collective.
void average_buffers(const ReplicaTensors& tensors, const Session& session);

}  // namespace detail
}  // namespace troika
