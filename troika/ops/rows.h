// Internal. What the operators here demand of a tensor whose elements they reach by address: rows
// one after another. A view may look so by its sizes and not be (an expanded one has stride 0).
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/error.h>

#include <string_view>

namespace troika::ops {

// Returns `tensor`, or a copy with its elements in row-major order where they are not. For inputs.
[[nodiscard]] inline at::Tensor in_rows(const at::Tensor& tensor) {
  return tensor.contiguous();
}

// Throws InternalError naming `what` unless elements are in row-major order. For tensors that are
// written in place.
inline void check_in_rows(const at::Tensor& tensor, std::string_view what) {
  if (!tensor.is_contiguous()) check(false, std::string(what) + " is not contiguous");
}

// Returns whether kernels compute with the elements of `tensor` in fp32.
[[nodiscard]] inline bool is_of_few_bits(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

}  // namespace troika::ops
