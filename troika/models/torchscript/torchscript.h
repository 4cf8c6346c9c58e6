// A model that comes as a TorchScript file: one unit, or those that the recipe names, which
// autograd differentiates.
#pragma once

#include <troika/models/torchscript/options.h>

namespace troika {

// Builds the units. Parameters have the names and the initial values of the file. Throws UsageError
// as ScriptModule does.
[[nodiscard]] Model build_torchscript(const TorchscriptOptions& options, const LossOptions& loss,
                                      std::uint64_t seed, const ModelLayout& layout);

// Throws UsageError naming the file unless it can be loaded, takes the inputs that the recipe names
// and returns what the loss takes, or its own, gives the same outputs twice in evaluation, and its
// units give them as well.
void check_torchscript(const TorchscriptOptions& options, const LossOptions& loss);
// Tries the module with a loss that the recipe writes, as try_expression() does.
void check_torchscript_expression(const TorchscriptOptions& options, const LossOptions& loss);

// Returns the parameters and buffers of a file under their names, on the CPU. Throws UsageError as
// load_script() does.
[[nodiscard]] std::vector<NamedTensor> script_tensors(const std::filesystem::path& path);

// Writes the script `from` with the values of a trained model to `to`, for torch.jit.load().
void save_torchscript(const std::filesystem::path& from, const std::filesystem::path& to,
                      const std::vector<NamedTensor>& values);

}  // namespace troika
