// A parameter as layers see it: views into the arena. The gradient slot is claimed: the first
// contribution of a step writes it, later ones add to it, so no pass over memory zeroes gradients.
// A frozen parameter has no gradient, and takes no contribution.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/param/spec.h>

#include <utility>

namespace troika {

class Parameter {
 public:
  // Takes undefined tensors for those that do not exist (yet).
  Parameter(ParameterSpec spec, at::ScalarType master_type, at::Tensor master,
            at::Tensor working_weight, at::Tensor gradient);

  [[nodiscard]] const ParameterSpec& spec() const { return spec_; }
  // Returns whether it takes gradients. Ask before a gradient is computed in vain.
  [[nodiscard]] bool is_trained() const { return !spec_.frozen; }
  // Returns the type of masters and gradients: fp32, or fp64 in fp64 runs.
  [[nodiscard]] at::ScalarType master_type() const { return master_type_; }
  // Returns the tensor that the optimiser updates. Throws InternalError if this rank has only a
  // shard of it: at ZeRO stage 3, in mixed precision from stage 1 on. Arena::local_shards() has the
  // shards.
  [[nodiscard]] const at::Tensor& master() const {
    return master_.defined() ? master_ : refuse("master");
  }
  // Returns the working weight, for computation: the master itself, or its copy in bf16 or fp16
  // (where the spec says keep_fp32: in the master's type). At ZeRO stage 3 it exists from
  // UnitHooks::unshard() to reshard(); otherwise throws InternalError.
  [[nodiscard]] const at::Tensor& working_weight() const {
    return working_weight_.defined() ? working_weight_ : refuse("working weight");
  }
  // Returns the gradient, in the master's precision. Meaningful only when claimed(). Under ZeRO it
  // may have memory only from UnitHooks::prepare_gradients() to the reduction; otherwise throws
  // InternalError.
  [[nodiscard]] const at::Tensor& gradient() const {
    return gradient_.defined() ? gradient_ : refuse("gradient");
  }

  // Returns whether this step has contributed yet.
  [[nodiscard]] bool claimed() const { return claimed_; }
  // Begins a new step: the next contribution overwrites.
  void release_gradient() { claimed_ = false; }
  // Zeroes the slot unless it is claimed, and claims it. Use it for contributions that touch only
  // some rows, and for parameters that a step did not use. Has no effect on a frozen parameter.
  void claim_zeroed();

  // Adds `contribution` to the gradient, if it is trained. Same shape, any floating type.
  void add_gradient(const at::Tensor& contribution);
  // Claims the slot, and returns whether it was claimed. For a contribution that the caller then
  // adds to gradient(), or writes where it was not.
  [[nodiscard]] bool claim() { return std::exchange(claimed_, true); }

  // Set other memory, or none (undefined). For the arena only.
  void set_working_weight(at::Tensor weight) { working_weight_ = std::move(weight); }
  void set_gradient(at::Tensor gradient) { gradient_ = std::move(gradient); }

 private:
  [[noreturn]] const at::Tensor& refuse(const char* what) const;

  ParameterSpec spec_;
  at::ScalarType master_type_;
  at::Tensor master_;
  at::Tensor working_weight_;
  at::Tensor gradient_;
  bool claimed_ = false;
};

}  // namespace troika
