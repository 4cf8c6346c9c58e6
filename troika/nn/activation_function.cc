#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/nn/activation_function.h>

namespace troika {

template <>
std::span<const std::string_view> names_of<ActivationFunction>() {
  static constexpr auto kNames =
      std::to_array<std::string_view>({"swiglu", "gelu", "gelu_tanh", "relu", "tanh"});
  return kNames;
}

at::Tensor apply(ActivationFunction kind, const at::Tensor& input) {
  switch (kind) {
    case ActivationFunction::kGelu:
      return at::gelu(input, "none");
    case ActivationFunction::kGeluTanh:
      return at::gelu(input, "tanh");
    case ActivationFunction::kRelu:
      return at::relu(input);
    case ActivationFunction::kTanh:
      return at::tanh(input);
    case ActivationFunction::kSwiGlu:
      break;
  }
  throw InternalError("internal error: swiglu takes two inputs");
}

at::Tensor apply_backward(ActivationFunction kind, const at::Tensor& gradient,
                          const at::Tensor& input, const at::Tensor& output) {
  switch (kind) {
    case ActivationFunction::kGelu:
      return at::gelu_backward(gradient, input, "none");
    case ActivationFunction::kGeluTanh:
      return at::gelu_backward(gradient, input, "tanh");
    case ActivationFunction::kRelu:
      return at::threshold_backward(gradient, output, 0);
    case ActivationFunction::kTanh:
      return at::tanh_backward(gradient, output);
    case ActivationFunction::kSwiGlu:
      break;
  }
  throw InternalError("internal error: swiglu takes two inputs");
}

}  // namespace troika
