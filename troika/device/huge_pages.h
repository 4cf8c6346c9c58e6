// Memory of tensors in pages of 2 MiB, where the system has them. What is written for the first
// time costs a fault a page, and with small ones those take longer than the values.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika {

// Asks for huge pages below a tensor that has not been written yet, and returns it. Leaves small
// tensors as they are, and those of devices.
at::Tensor in_huge_pages(at::Tensor fresh);

}  // namespace troika
