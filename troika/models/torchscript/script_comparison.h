// Holds the units of a TorchScript file to its forward(). Internal to this folder.
#pragma once

#include <troika/models/torchscript/script_units.h>

#include <span>
#include <string>
#include <vector>

namespace troika {

// Throws UsageError unless the units, one after the other, give what forward() of the file gives,
// in evaluation and, with the same draws, in training. The values of the parameters are others
// while this compares: zeros would hide what they are multiplied by. `outputs` are the names of
// what forward() returns. Draws from torch's generators.
void check_units(const Script& script, std::span<const ScriptUnit> units,
                 const std::vector<std::string>& outputs, const Tensors& inputs);

}  // namespace troika
