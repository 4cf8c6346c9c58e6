// An exported program as a torch::nn::Module: its parameters and buffers under the names that
// Python gives them, and a forward() that runs the program. Extends LibTorch.
//
//   const auto net = troika::load_exported("net.pt2");   // torch.export.save(program, "net.pt2")
//   net->train();
//   const at::Tensor logits = net->forward({x})[0];
#pragma once

#include <torch/nn/module.h>
#include <troika/exported/tensor.h>
#include <troika/nn/lora_host.h>
#include <troika/nn/tensor_map.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace troika {

class ExportArchive;
struct Program;

// Says how a program is run.
struct ExportedSettings {
  std::optional<std::filesystem::path> evaluation_path;  // of the program that is run in evaluation
  // Shell patterns of the paths of modules whose activations are computed again in the backward
  // pass: "encoder.layer.*".
  std::vector<std::string> checkpoint_modules;
};

// The parameters are those that Python had, in the type that they were exported in; `to()` changes
// it. Those that needed no gradient are buffers here. A program that was exported in train mode
// follows train() and eval(): dropout, batch-norm and recurrent layers as PyTorch's modules do, and
// in evaluation no buffer changes. Where its forward() has a branch for training of another kind,
// such as stochastic depth, a second file of the module in eval mode takes its place in evaluation,
// with the values of this one. Casts to float32 become casts to double once the parameters are
// double.
class ExportedModule final : public torch::nn::Module, public LoraHost {
 public:
  // Reads the program and its values, and the program that is run in evaluation, where it is
  // another. Throws UsageError as read_program() and ExportArchive do, where the two do not take
  // and return the same tensors, or do not have the same parameters, and where a pattern fits
  // nothing.
  explicit ExportedModule(const std::filesystem::path& path, const ExportedSettings& settings = {});

  ~ExportedModule() override;

  // Puts pairs beside weights that the program hands to torch.nn.functional.linear, and to nothing
  // else. Weights with a second name get none. Throws UsageError where a pattern is such a name.
  void adapt(LoraTargets& targets) override;

  // Returns the tensors that forward() takes and returns, in order. What forward() of Python
  // returned in a dictionary or a dataclass has the names of its keys.
  [[nodiscard]] const std::vector<ExportedTensor>& takes() const { return trained_.takes; }
  [[nodiscard]] const std::vector<ExportedTensor>& gives() const { return trained_.gives; }

  // Runs the program. Throws UsageError naming the node, with its line of Python, whose operator
  // throws.
  [[nodiscard]] Tensors forward(const Tensors& inputs);

 private:
  struct Loaded {
    explicit Loaded(const ExportArchive& archive);
    std::string file;
    std::shared_ptr<const Program> program;
    std::vector<ExportedTensor> takes, gives;
    // Hold, by position among the program's inputs, parameters and buffers, which are registered,
    // and values that are not saved.
    std::vector<at::Tensor> values;
  };
  void register_values(const ExportArchive& archive);
  void share_values(const ExportArchive& archive);
  [[nodiscard]] std::set<const c10::TensorImpl*> shared_weights() const;
  [[nodiscard]] Tensors run(Loaded& loaded, const Tensors& inputs);
  void refuse_without_gradients(const Tensors& results) const;

  Loaded trained_;
  std::optional<Loaded> evaluated_;
  std::unique_ptr<std::map<const c10::TensorImpl*, struct ProgramPair>> pairs_;
};

// Loads what torch.export.save() has written. Throws UsageError naming the file and what is wrong.
[[nodiscard]] std::shared_ptr<ExportedModule> load_exported(const std::filesystem::path& path,
                                                            const ExportedSettings& settings = {});

}  // namespace troika
