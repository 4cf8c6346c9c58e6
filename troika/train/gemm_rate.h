// How many floating-point operations a second matrix products of this machine really reach: the
// denominator of the model FLOPs utilisation (MFU).
#pragma once

#include <c10/core/ScalarType.h>
#include <troika/base/time.h>

namespace troika {

// The best of a few products of square matrices, with the threads that this process has, within
// about `budget`. Operations a second; a multiply-add counts two.
[[nodiscard]] double measure_gemm_rate(c10::ScalarType type, Seconds budget);

}  // namespace troika
