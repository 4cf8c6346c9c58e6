// Internal. Lists of weights as recipes give them.
#pragma once

#include <ATen/ATen.h>
#include <troika/config/origins.h>

#include <string>
#include <vector>

namespace troika::detail {

// Makes a tensor like `like` in type and device; undefined for an empty list.
inline at::Tensor weights_like(const std::vector<double>& weights, const at::Tensor& like) {
  if (weights.empty()) return {};
  return at::tensor(weights, at::kDouble).to(like.options());
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
