// Internal: updates that a device applies or leaves out, as a number on it says that the host has
// not read.
#pragma once

#include <ATen/ATen.h>

namespace troika::ops {

// Writes `values` to `to` if `applies`, a bool (0-dim) on their device, is true; else `to` keeps
// its bits, whatever `values` are. All have the shape and type of `to`.
inline void write_if(const at::Tensor& applies, const at::Tensor& to, const at::Tensor& values) {
  at::Tensor out = to;
  at::where_out(out, applies, values, to);
}

}  // namespace troika::ops
