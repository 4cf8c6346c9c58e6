// A parameter as layers see it: views into the arena. The gradient slot is claimed: the first
// contribution of a step writes it, later ones add to it, so no pass over memory zeroes gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/param/spec.h>

namespace troika {

class Parameter {
 public:
  Parameter(ParameterSpec spec, at::Tensor master, at::Tensor value, at::Tensor gradient);

  [[nodiscard]] const ParameterSpec& spec() const { return spec_; }
  // What the optimiser updates: fp32, or fp64 in fp64 runs.
  [[nodiscard]] const at::Tensor& master() const { return master_; }
  // What matrix products use: the master itself, or its copy in bf16 or fp16.
  [[nodiscard]] const at::Tensor& value() const { return value_; }
  // In the master's precision. Meaningful only when claimed().
  [[nodiscard]] const at::Tensor& gradient() const { return gradient_; }

  // Whether this step has contributed yet.
  [[nodiscard]] bool claimed() const { return claimed_; }
  // A new step: the next contribution overwrites.
  void release_gradient() { claimed_ = false; }
  // Zeroes the slot unless it is claimed, and claims it: for contributions that touch only some
  // rows, and for parameters that a step did not use.
  void claim_zeroed();

  // gradient += contribution. Same shape, any floating type.
  void add_gradient(const at::Tensor& contribution);
  // gradient += left^T right, for a weight [out, in] from left [n, out] and right [n, in].
  void add_gradient_product(const at::Tensor& left, const at::Tensor& right);

 private:
  ParameterSpec spec_;
  at::Tensor master_;
  at::Tensor value_;
  at::Tensor gradient_;
  bool claimed_ = false;
};

}  // namespace troika
