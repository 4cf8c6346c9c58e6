// The modules of a TorchScript file that a recipe names as units, in a row. Internal to this
// folder.
#pragma once

#include <troika/models/torchscript/options.h>
#include <troika/models/torchscript/script_module.h>
#include <troika/nn/stage.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troika {

struct ScriptUnit {
  std::string name;
  std::string prefix;  // of its parameters' names
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensors(const Tensors&)> forward;
};

// Returns the units that the recipe names, or the whole module as one. Throws UsageError naming a
// unit that is neither a child nor built in, and a parameter that no unit holds, or two, also where
// it has two names.
[[nodiscard]] std::vector<ScriptUnit> script_units(const TorchscriptOptions& options,
                                                   const Script& script);

// Passes inputs through the units in one of the two modes, without gradients. Returns the outputs
// of each. Throws UsageError naming the first unit that does not take what the one before gives, or
// whose outputs are not those of so many samples.
[[nodiscard]] std::vector<Tensors> run_units(std::span<const ScriptUnit> units,
                                             const Tensors& inputs, Mode mode);

// Returns "[2, 3], [2]".
[[nodiscard]] std::string shapes_of(const Tensors& tensors);

}  // namespace troika
