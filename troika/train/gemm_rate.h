// How many floating-point operations a second matrix products of this machine really reach: the
// denominator of the model FLOPs utilisation (MFU).
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/time.h>

namespace troika {

// Returns the best rate of a few products of square matrices, with the threads that this process
// has, or on its device, within about `budget`. The unit is operations a second; a multiply-add
// counts two.
[[nodiscard]] double measure_gemm_rate(at::Device device, c10::ScalarType type, Seconds budget);

// Returns it for a run that is about to take memory for its model. The matrices are no part of what
// the run needs, so the peak of tensor memory does not count them.
[[nodiscard]] double gemm_rate_of_run(at::Device device, c10::ScalarType type);

}  // namespace troika
