// What forward() of a TorchScript file does beside computing outputs, read from its graph: it may
// write to its inputs, and may differentiate. Internal to this folder.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <cstddef>
#include <vector>

namespace troika {

class ScriptEffects {
 public:
  // Reads the graph of forward() with those of all that it calls. A graph that cannot be read is
  // taken to write to each input.
  explicit ScriptEffects(const torch::jit::Module& module);

  // Returns whether forward() may write to the values, or set the flags, of its input at `index`.
  // Such an input is passed as a copy: the batch is read again where activations are recomputed.
  [[nodiscard]] bool writes_to(std::size_t index) const {
    return index < writes_.size() ? writes_[index] : writes_to_others_;
  }
  // Returns whether forward() calls torch.autograd.grad() or backward(), as forces from an energy
  // are computed, so that it needs autograd in evaluation as well.
  [[nodiscard]] bool differentiates() const { return differentiates_; }

 private:
  std::vector<bool> writes_;
  bool writes_to_others_ = false;
  bool differentiates_ = false;
};

}  // namespace troika
