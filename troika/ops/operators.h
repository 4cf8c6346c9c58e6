// Internal: the operators of LibTorch that this folder defines, in its library `troika`. A call
// goes to the kernel of the device that the tensors live on: `cpu` for host memory, a plug-in's
// where one has registered it, else `composite`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>

namespace troika::ops {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Defines the operators, once for the process, and registers the kernels of this library. A plug-in
// that registers kernels calls it before. Thread safe.
void define_operators();

// Returns the 32-bit word below which dropout takes an element away.
inline std::uint64_t dropout_threshold(double probability) {
  return static_cast<std::uint64_t>(std::llround(probability * 0x1.0p32));
}

// Returns the number that a dry run has in place of one in fp64: a shape alone.
[[nodiscard]] at::Tensor number_like(const at::Tensor& meta);

}  // namespace troika::ops
