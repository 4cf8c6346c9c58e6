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

}  // namespace troika::ops
