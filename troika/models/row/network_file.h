// A network in a file that Python has written: the tensors that it takes and returns, as a recipe
// says them, and where its own loss stands among them.
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

// Tells what a module's own loss is over the targets of a microbatch.
enum class LossReduction { kMean, kSum };

template <>
std::span<const std::string_view> names_of<LossReduction>();

// Stand for the first of [model.outputs], and for the number of samples.
inline constexpr const char* kFirstOutput = "first";
inline constexpr const char* kSampleCount = "samples";

struct NetworkFile {
  std::string path;
  std::vector<ScriptTensor> inputs, targets, outputs;
  // The outputs of a module that returns its own loss.
  std::string loss_output = kFirstOutput;
  std::string weight_output = kSampleCount;
  LossReduction loss_reduction = LossReduction::kMean;
  std::vector<std::string> units;  // empty: the whole network is one

  bool operator==(const NetworkFile&) const = default;
};

// Returns such a tensor as what a sample has.
[[nodiscard]] TensorSpec spec_of(const ScriptTensor& tensor, TensorRole role);

// Returns the traits that follow from its tensors and its loss; not those of its units.
[[nodiscard]] ModelTraits traits_of_network(const NetworkFile& options, const LossKind& loss);

// Returns the names of [model.outputs].
[[nodiscard]] std::vector<std::string> output_names(const NetworkFile& options);

}  // namespace troika
