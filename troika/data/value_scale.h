// The unit that a run trains the values of its target in, where that is not their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace troika {

// A value of the data is `number / scale + shift`.
struct ValueScale {
  double shift = 0;
  double scale = 1;
};

// Returns numbers of a target [samples, ...] in the unit of the data, as fp64, where each number of
// a sample has a scale; else as they are.
[[nodiscard]] at::Tensor in_own_unit(const at::Tensor& numbers, std::span<const ValueScale> scales);

}  // namespace troika
