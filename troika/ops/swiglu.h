// The gated activation of a feed-forward layer (Shazeer 2020) with its gradient, each in one pass.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::ops {

// Returns gate x sigmoid(gate) x up, rounded once. Both have one shape and one floating type: those
// of few bits are computed with in fp32.
[[nodiscard]] at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

struct SwiGluInputGradients {
  at::Tensor gate, up;  // of the type of these
};

// Returns the gradients for that of the result.
[[nodiscard]] SwiGluInputGradients swiglu_backward(const at::Tensor& gradient,
                                                   const at::Tensor& gate, const at::Tensor& up);

}  // namespace troika::ops
