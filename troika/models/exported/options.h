// The keys of [model] with kind = "exported": a program that torch.export.save() has written.
#pragma once

#include <troika/models/kind.h>
#include <troika/models/row/network_file.h>

#include <string>
#include <vector>

namespace troika {

// Stands for an input that is no mask.
inline constexpr const char* kNoMask = "none";

struct ExportedInput : ScriptTensor {
  std::string mask_of = kNoMask;  // the input of tokens that it is the mask of

  bool operator==(const ExportedInput&) const = default;
};

struct ExportedOptions : ProgramFiles {
  // Hold what the recipe says of the program's tensors, by name, completed from the file: all that
  // forward() takes but targets, in its order, and what of its results is used.
  std::vector<ExportedInput> inputs;
  std::vector<ScriptTensor> targets, outputs;
  // Mean what they do in NetworkFile.
  std::string loss_output = kFirstOutput;
  std::string weight_output = kSampleCount;
  LossReduction loss_reduction = LossReduction::kMean;
  std::vector<std::string> checkpoint_modules;  // as in ExportedSettings

  bool operator==(const ExportedOptions&) const = default;
};

[[nodiscard]] const ModelKind& exported_kind();

}  // namespace troika
