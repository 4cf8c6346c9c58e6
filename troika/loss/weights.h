// Internal. Lists of weights as recipes give them.
#pragma once

#include <ATen/ATen.h>
#include <troika/config/origins.h>

#include <string>
#include <vector>

namespace troika::detail {

// Makes a tensor like `like` in type and device; undefined for an empty list. It is a copy of the
// list's memory, and no at::tensor(): that writes to what it makes, and a dry run, which sends all
// operators to their meta versions, makes nothing that can be written to.
inline at::Tensor weights_like(const std::vector<double>& weights, const at::Tensor& like) {
  if (weights.empty()) return {};
  const at::Tensor listed =
      at::from_blob(const_cast<double*>(weights.data()),  // NOLINT: it is read
                    {std::ssize(weights)}, at::kDouble);
  return listed.to(like.options(), /*non_blocking=*/false, /*copy=*/true);
}

// Throws UsageError unless there is one for each output, or none at all.
inline void check_weights(const std::string& key, const std::vector<double>& weights,
                          std::int64_t outputs, const Origins& origins) {
  if (weights.empty() || std::ssize(weights) == outputs) return;
  origins.fail({"loss." + key}, key + " has " + std::to_string(weights.size()) +
                                    " numbers, and the model gives " + std::to_string(outputs) +
                                    "; one for each, or []");
}

}  // namespace troika::detail
