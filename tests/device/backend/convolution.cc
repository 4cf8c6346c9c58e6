// LibTorch asks devices other than its own for a convolution of theirs. It is the CPU's.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "device/backend/fallback.h"

namespace troika::test {
namespace {

c10::OperatorHandle find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

void convolution(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  static const auto on_host = find_operator("aten::convolution");
  run_on_device(on_host, stack);
}

// The CPU's asks for the shape of the bias, too: one number for each output channel, the first
// dimension of what arrives at the output behind the batch.
void convolution_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const auto on_host = find_operator("aten::convolution_backward");
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const std::int64_t channels = (*stack)[first].toTensor().size(1);
  stack->insert(stack->begin() + static_cast<std::ptrdiff_t>(first) + 3,
                c10::List<std::int64_t>({channels}));
  run_on_device(on_host, stack);
}

TORCH_LIBRARY_IMPL(aten, HPU, m) {
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable",
         torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

}  // namespace
}  // namespace troika::test
