// The gradient of a weight: a product of factors of few bits that is summed in more.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::ops {

enum class Write { kAdd, kOverwrite };

// Adds left^T right to `sum`, or overwrites it. `sum` is [m, n], `left` [k, m] and `right` [k, n];
// the factors have one type, and `sum` may have a wider one. Where a device can, the product is
// not rounded to the type of its factors.
void add_product_(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right,
                  Write write);

}  // namespace troika::ops
