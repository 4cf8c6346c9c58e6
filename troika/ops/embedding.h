// The gradient of a table look-up.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::ops {

// Adds rows[n] to table[indices[n]] for n in ascending order, with any number of threads. `table`
// is [entries, dim] in fp32 or fp64, `indices` int64 [n], `rows` [n, dim] in any floating type.
void add_rows_(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& rows);

}  // namespace troika::ops
