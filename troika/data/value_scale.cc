#include <ATen/ATen.h>
#include <troika/data/value_scale.h>

#include <cstdint>
#include <vector>

namespace troika {

at::Tensor in_own_unit(const at::Tensor& numbers, std::span<const ValueScale> scales) {
  const auto width = static_cast<std::int64_t>(scales.size());
  if (scales.empty() || numbers.numel() != numbers.size(0) * width) return numbers;
  std::vector<double> shifts, factors;
  for (const ValueScale& each : scales) {
    shifts.push_back(each.shift);
    factors.push_back(each.scale);
  }
  const auto row = [&](const std::vector<double>& values) {
    return at::tensor(values, at::kDouble).to(numbers.device());
  };
  const at::Tensor flat = numbers.reshape({-1, width}).to(at::kDouble);
  return (flat / row(factors) + row(shifts)).reshape(numbers.sizes());
}

}  // namespace troika
