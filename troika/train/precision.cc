#include <c10/core/ScalarType.h>
#include <troika/base/error.h>
#include <troika/device/facts.h>
#include <troika/train/precision.h>

#include <cmath>

namespace troika {

Precision resolve_precision(Precision precision, at::Device device) {
  if (precision != Precision::kAuto) return precision;
  return multiplies_bf16(device) ? Precision::kBFloat16 : Precision::kFloat32;
}

Precision resolve_precision(const TrainOptions& train, HostPosition place) {
  if (train.precision != Precision::kAuto) return train.precision;
  try {
    return resolve_precision(train.precision, choose_device(train.device, place, "train.device"));
  } catch (const UsageError&) {  // whoever starts the run says what is missing
    return Precision::kBFloat16;
  }
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

NumericSettings numeric_settings(const TrainOptions& train) {
  return {train.tf32, train.cudnn_benchmark, train.deterministic};
}

double loss_scale_for(Precision precision, double targets, double scale) {
  if (precision == Precision::kFloat64 || precision == Precision::kFloat32) return 1;
  return scale / std::exp2(std::round(std::log2(std::max(targets, 1.0))));
}

}  // namespace troika
