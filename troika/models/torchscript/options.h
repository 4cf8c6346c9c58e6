// The keys of [model] with kind = "torchscript": a module that Python has scripted or traced.
#pragma once

#include <troika/models/kind.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troika {

enum class ScriptDtype { kFloat32, kInt64 };

// A tensor that the module takes or returns: a table of [model.inputs], [model.targets] or
// [model.outputs].
struct ScriptTensor {
  std::string name;
  std::vector<std::int64_t> shape = {};  // of one sample; empty: a number
  ScriptDtype dtype = ScriptDtype::kFloat32;
  std::int64_t classes = 0;  // > 0: whole numbers below it

  bool operator==(const ScriptTensor&) const = default;
};

inline constexpr const char* kSameFile = "same";

// Tells what a module's own loss is over the targets of a microbatch.
enum class LossReduction { kMean, kSum };

template <>
std::span<const std::string_view> names_of<LossReduction>();

// Stand for the first of [model.outputs], and for the number of samples.
inline constexpr const char* kFirstOutput = "first";
inline constexpr const char* kSampleCount = "samples";

struct TorchscriptOptions {
  std::string path;
  std::string evaluation_path = kSameFile;
  std::vector<ScriptTensor> inputs, targets, outputs;
  // The outputs of a module that returns its own loss.
  std::string loss_output = kFirstOutput;
  std::string weight_output = kSampleCount;
  LossReduction loss_reduction = LossReduction::kMean;
  std::vector<std::string> units;  // empty: the whole module is one

  bool operator==(const TorchscriptOptions&) const = default;
};

// Returns such a tensor as what a sample has.
[[nodiscard]] TensorSpec spec_of(const ScriptTensor& tensor, TensorRole role);

// Returns the names of [model.outputs].
[[nodiscard]] std::vector<std::string> output_names(const TorchscriptOptions& options);

[[nodiscard]] const ModelKind& torchscript_kind();

}  // namespace troika
