// An exported program as a torch::nn::Module: its parameters and buffers under the names that
// Python gives them, and a forward() that runs the program. Extends LibTorch.
//
//   const auto net = troika::load_exported("net.pt2");   // torch.export.save(program, "net.pt2")
//   net->train();
//   const at::Tensor logits = net->forward({x})[0];
#pragma once

#include <torch/nn/module.h>
#include <troika/exported/tensor.h>
#include <troika/nn/tensor_map.h>

#include <filesystem>
#include <memory>
#include <vector>

namespace troika {

struct Program;

// The parameters are those that Python had, in the type that they were exported in; `to()` changes
// it. Those that needed no gradient are buffers here. A program that was exported in train mode
// follows train() and eval(): dropout, batch-norm and recurrent layers as PyTorch's modules do, and
// in evaluation no buffer changes. Casts to float32 become casts to double once the parameters are
// double.
class ExportedModule final : public torch::nn::Module {
 public:
  // Reads the program and its values. Throws UsageError as read_program() and ExportArchive do.
  explicit ExportedModule(const std::filesystem::path& path);

  // Returns the tensors that forward() takes and returns, in order. What forward() of Python
  // returned in a dictionary or a dataclass has the names of its keys.
  [[nodiscard]] const std::vector<ExportedTensor>& takes() const { return takes_; }
  [[nodiscard]] const std::vector<ExportedTensor>& gives() const { return gives_; }

  // Runs the program. Throws UsageError naming the node, with its line of Python, whose operator
  // throws.
  [[nodiscard]] Tensors forward(const Tensors& inputs);

 private:
  [[nodiscard]] at::Tensor constant(std::size_t input, const struct GraphMode& mode);

  std::filesystem::path path_;
  std::shared_ptr<const Program> program_;
  std::vector<ExportedTensor> takes_, gives_;
  // Hold, by position among the program's inputs, parameters and buffers, which are registered, and
  // values that are not saved.
  std::vector<at::Tensor> values_;
};

// Loads what torch.export.save() has written. Throws UsageError naming the file and what is wrong.
[[nodiscard]] std::shared_ptr<ExportedModule> load_exported(const std::filesystem::path& path);

}  // namespace troika
