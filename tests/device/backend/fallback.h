// How the test device runs an operator: the CPU's kernel, over the memory of the device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace troika::test {

// Runs the CPU kernel of an operator of LibTorch as one kernel of the current stream. The arguments
// lie on the stack, and the results in their place: arguments that are written stay the tensors
// that they are, views are views of device memory, and new tensors lie on the device. What the
// schema says of aliases tells the checker which arguments are written. Throws for tensors on
// several devices, and for operators that are not LibTorch's: they need a composite kernel.
void run_on_device(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace troika::test
