// A network in a file that Python has written: the tensors that it takes and returns, as a recipe
// says them, and where its own loss stands among them.
#pragma once

#include <troika/models/kind.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
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

// Stands for the file itself.
inline constexpr const char* kSameFile = "same";

// The files that a recipe names.
struct ProgramFiles {
  std::string path;
  std::string evaluation_path = kSameFile;  // of the one that is run in evaluation

  bool operator==(const ProgramFiles&) const = default;
};

struct NetworkFile : ProgramFiles {
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

// Returns its one or two paths.
[[nodiscard]] std::vector<std::filesystem::path> paths_of(const ProgramFiles& files);

// Returns the path of the file for evaluations; nothing where it is the file itself.
[[nodiscard]] std::optional<std::filesystem::path> evaluation_file(const ProgramFiles& files);

// Returns the files of a model that has been saved: "model.pt" and "model-eval.pt" beside
// "model.safetensors", for the suffix ".pt". The second is there where `files` has two.
[[nodiscard]] ProgramFiles saved_files(const ProgramFiles& files,
                                       const std::filesystem::path& model, std::string_view suffix);

}  // namespace troika
