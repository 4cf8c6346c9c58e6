// The tensors that forward() of a TorchScript file assigns, as in `self.mean = 0.9 * self.mean`.
// TorchScript then puts another tensor into the module, which training would not see. Internal to
// this folder.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

namespace troika {

class AssignedBuffers {
 public:
  // Finds the assignments in the methods of the module and of its children.
  explicit AssignedBuffers(const torch::jit::Module& module);

  // Lends copies to the module before its forward pass, so that autograd may keep the old values.
  void lend();
  // Takes the values over into the tensors that the module was loaded with, and puts these back.
  // Throws UsageError naming a buffer that has another shape now.
  void take_back();

 private:
  struct Slot {
    std::string name;
    c10::intrusive_ptr<c10::ivalue::Object> object;
    std::size_t index;
    at::Tensor tensor;
  };
  std::vector<Slot> slots_;
};

}  // namespace troika
