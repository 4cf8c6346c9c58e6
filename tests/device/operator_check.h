// Holds a function of tensors on the test device against the same on the CPU, with its gradients.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "device/backend/checks.h"

namespace troika::test {

using Tensors = std::vector<at::Tensor>;

struct OperatorCase {
  const char* name;
  Tensors (*inputs)();
  at::Tensor (*compute)(const Tensors&);
};

inline void PrintTo(const OperatorCase& test, std::ostream* out) {
  *out << test.name;
}

inline at::Tensor normal(at::IntArrayRef shape) {
  return torch::randn(shape, at::kDouble);
}
inline at::Tensor below(std::int64_t limit, at::IntArrayRef shape) {
  return torch::randint(limit, shape);
}

struct Outcome {
  at::Tensor value;
  Tensors gradients;  // of the inputs that have one
};

// Multiplies the value with weights, so that each element's gradient is another.
inline Outcome compute(const OperatorCase& test, const Tensors& inputs, c10::Device device) {
  Tensors own;
  Tensors leaves;
  for (const at::Tensor& input : inputs) {
    own.push_back(input.detach().clone().to(device));
    if (input.is_floating_point()) {
      leaves.push_back(own.back().requires_grad_());
    }
  }
  torch::manual_seed(3);
  const at::Tensor value = test.compute(own);
  if (!value.requires_grad()) {
    return {value.cpu(), {}};
  }
  const at::Tensor weights = torch::linspace(-1, 1, value.numel(), at::kDouble).view(value.sizes());
  Outcome outcome{value.detach().cpu(), {}};
  for (const at::Tensor& gradient :
       torch::autograd::grad({(value * weights.to(device)).sum()}, leaves)) {
    outcome.gradients.push_back(gradient.cpu());
  }
  return outcome;
}

inline void expect_near(const at::Tensor& device, const at::Tensor& cpu) {
  ASSERT_EQ(device.sizes(), cpu.sizes());
  ASSERT_EQ(device.scalar_type(), cpu.scalar_type());
  if (cpu.numel() > 0) {
    const at::Tensor expected = cpu.to(at::kDouble);
    const double scale = expected.abs().max().item<double>();
    EXPECT_LE((device.to(at::kDouble) - expected).abs().max().item<double>(), 1e-13 * scale);
  }
}

// Computes it on both, in double precision.
inline void expect_what_the_cpu_computes(const OperatorCase& test) {
  torch::manual_seed(7);
  const Tensors inputs = test.inputs();
  const Outcome cpu = compute(test, inputs, at::kCPU);
  const Outcome device = compute(test, inputs, test_device(1));
  expect_near(device.value, cpu.value);
  ASSERT_EQ(device.gradients.size(), cpu.gradients.size());
  for (std::size_t i = 0; i < cpu.gradients.size(); ++i) {
    expect_near(device.gradients[i], cpu.gradients[i]);
  }
}

inline std::string case_name(const testing::TestParamInfo<OperatorCase>& info) {
  return info.param.name;
}

}  // namespace troika::test
