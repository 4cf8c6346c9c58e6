// Internal: the kernels of the operators, by what runs them; not every one has each. `cpu` reads
// host memory, and in a dry run, where tensors have shapes alone, allocates what it would.
// `composite` is made of ATen's operators, for devices without a kernel, and is the reference of
// the others. `cuda` is in the plug-in (device/cuda).
#pragma once

#include <troika/ops/operators.h>

namespace troika::ops::cpu {
#include <troika/ops/signatures.inc>
}  // namespace troika::ops::cpu

namespace troika::ops::composite {
#include <troika/ops/signatures.inc>
}  // namespace troika::ops::composite

namespace troika::ops::cuda {
#include <troika/ops/signatures.inc>
}  // namespace troika::ops::cuda
