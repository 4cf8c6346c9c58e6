// A TorchScript file as a torch::nn::Module: its parameters and buffers under the names that Python
// gives them, so that everything that works on modules works on it. Internal to this folder.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <troika/models/torchscript/script_buffers.h>
#include <troika/models/torchscript/script_effects.h>
#include <troika/nn/tensor_map.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troika {

// A script, or one of its children, and the one for evaluations where there is another.
struct Script {
  std::filesystem::path path;
  torch::jit::Module module;
  std::optional<torch::jit::Module> evaluation;

  // Loads the files on the CPU. Throws UsageError naming the file: it is not there, is no
  // TorchScript, needs what is not here, or has no parameter to train.
  [[nodiscard]] static Script load(const std::filesystem::path& path,
                                   const std::optional<std::filesystem::path>& evaluation_path);
  // Returns the child of this dotted name; nothing where there is none.
  [[nodiscard]] std::optional<Script> child(const std::string& name) const;
};

class ScriptModule final : public torch::nn::Module {
 public:
  // Takes the names of what forward() returns, which the keys of a dictionary are held to; without
  // names its tensors count in their order. Throws UsageError where the parameters of the two files
  // are not the same.
  explicit ScriptModule(Script script, std::vector<std::string> outputs = {});

  // Calls forward() of the file, and returns the tensors of its result in order: a tensor, a tuple,
  // a list or a dictionary of them. A buffer that forward() assigns keeps its new value. An input
  // that forward() writes to is given as a copy. A forward() that differentiates has autograd while
  // it runs. LibTorch's optimising executor is not used: the operators are the ones that Python
  // runs, and the first passes are no slower than others. Throws UsageError with what the script
  // throws.
  [[nodiscard]] Tensors forward(const Tensors& inputs);

  void train(bool on = true) override;

  // Writes a copy of the file with these values, by name, for torch.jit.load(). A tensor that
  // `values` does not have stays as it is. Throws StorageError.
  static void save_with(const std::filesystem::path& from, const std::filesystem::path& to,
                        const std::vector<NamedTensor>& values);

 private:
  struct Shared {
    at::Tensor trained, evaluated;
  };
  // A file as forward() calls it.
  struct Callee {
    explicit Callee(const torch::jit::Module& module)
        : module(module), assigned(module), effects(module) {}

    torch::jit::Module module;
    AssignedBuffers assigned;
    ScriptEffects effects;
  };
  void share_with_evaluation();
  [[nodiscard]] c10::IValue call(Callee& callee, const Tensors& inputs) const;
  [[nodiscard]] Tensors tensors_of_result(const c10::IValue& result) const;

  Script script_;
  std::vector<std::string> outputs_;
  Callee trained_;
  std::optional<Callee> evaluated_;
  // Tensors of the two files that are one.
  std::vector<Shared> shared_;
};

}  // namespace troika
