#include <c10/core/ScalarType.h>
#include <troika/base/error.h>
#include <troika/observe/machine.h>
#include <troika/train/precision.h>

#include <cmath>

namespace troika {

Precision resolve_precision(Precision precision) {
  if (precision != Precision::kAuto) return precision;
  const MachineFacts machine = machine_facts();
  return machine.amx_bf16 || machine.avx512_bf16 ? Precision::kBFloat16 : Precision::kFloat32;
}

NumericTypes numeric_types(Precision precision) {
  switch (precision) {
    case Precision::kFloat64:
      return {at::kDouble, at::kDouble};
    case Precision::kFloat32:
      return {at::kFloat, at::kFloat};
    case Precision::kBFloat16:
      return {at::kBFloat16, at::kFloat};
    case Precision::kFloat16:
      return {at::kHalf, at::kFloat};
    case Precision::kAuto:
      break;
  }
  throw InternalError("internal error: precision is not resolved");
}

double loss_scale_for(Precision precision, double targets, double scale) {
  if (precision == Precision::kFloat64 || precision == Precision::kFloat32) return 1;
  return scale / std::exp2(std::round(std::log2(std::max(targets, 1.0))));
}

}  // namespace troika
