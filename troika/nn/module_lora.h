// Low-rank adapters (LoRA, nn/lora.h) beside the torch::nn::Linear layers of a module of the user's
// own.
//
//   troika::ModuleLora lora(*net, {.rank = 8, .alpha = 16, .match = {"encoder.*"}});
//   troika::DataParallel model(net, session);              // reduces the pairs alone
//   torch::optim::AdamW optimizer(lora.parameters(), 1e-4);
//   const auto applied = lora.apply();                     // before each forward pass
//   loss = loss_of(net->forward(x));
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/nn/lora.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
class LinearImpl;
}  // namespace torch::nn

namespace troika {

// Registers a pair, "<layer>.lora_A.weight" [rank, in] and "<layer>.lora_B.weight" [out, rank], in
// each layer whose name fits, and freezes every other parameter. forward() of a torch::nn::Linear
// cannot be replaced: it reads a weight to which the pair was added. Not thread-safe.
class ModuleLora {
 public:
  // Draws each A from `seed` and the name of its layer, the same on every rank; B is zero. The
  // module must outlive this. A layer whose weight has a second name gets no pair. Throws
  // UsageError, and leaves the module as it was, where a pattern fits no layer or is the name of
  // one of those, where an option is out of range, or with dropout, which such layers cannot have.
  ModuleLora(torch::nn::Module& module, const LoraOptions& options, std::uint64_t seed = 0);
  ModuleLora(const ModuleLora&) = delete;
  ModuleLora& operator=(const ModuleLora&) = delete;
  ~ModuleLora() = default;

  // The layers compute with W + alpha / rank * B A while this lives; then with W again. Autograd
  // gives A and B their gradients.
  class Applied {
   public:
    explicit Applied(const ModuleLora& lora);
    Applied(const Applied&) = delete;
    Applied& operator=(const Applied&) = delete;
    ~Applied();

   private:
    const ModuleLora& lora_;
  };
  [[nodiscard]] Applied apply() const { return Applied(*this); }
  // Adds each pair to its weight for good, and sets B to zero.
  void merge();

  [[nodiscard]] const LoraOptions& options() const { return targets_.options(); }
  // Returns the names of all linear layers, and of those with a pair.
  [[nodiscard]] const std::vector<std::string>& layers() const { return targets_.layers(); }
  [[nodiscard]] const std::vector<std::string>& adapted() const { return targets_.adapted(); }
  // Returns the pairs, A and B in turn, by the layers of adapted().
  [[nodiscard]] std::vector<at::Tensor> parameters() const;

 private:
  struct Layer {
    torch::nn::LinearImpl* linear;
    at::Tensor weight, a, b;
  };
  [[nodiscard]] std::vector<std::pair<std::string, torch::nn::LinearImpl*>> choose(
      const torch::nn::Module& module);
  [[nodiscard]] at::Tensor change_of(const Layer& layer) const;

  LoraTargets targets_;
  std::vector<Layer> adapted_layers_;
};

}  // namespace troika
