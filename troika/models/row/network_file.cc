#include <ATen/ATen.h>
#include <troika/models/row/network_file.h>
#include <troika/models/row/network_result.h>

#include <algorithm>
#include <array>

namespace troika {

template <>
std::span<const std::string_view> names_of<ScriptDtype>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"float32", "int64"});
  return kNames;
}

template <>
std::span<const std::string_view> names_of<LossReduction>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"mean", "sum"});
  return kNames;
}

std::vector<std::filesystem::path> paths_of(const ProgramFiles& files) {
  std::vector<std::filesystem::path> paths = {files.path};
  if (const auto evaluation = evaluation_file(files)) paths.push_back(*evaluation);
  return paths;
}

std::optional<std::filesystem::path> evaluation_file(const ProgramFiles& files) {
  if (files.evaluation_path == kSameFile) return std::nullopt;
  return files.evaluation_path;
}

ProgramFiles saved_files(const ProgramFiles& files, const std::filesystem::path& model,
                         std::string_view suffix) {
  const auto beside = [&](std::string_view end) {
    return (model.parent_path() / (model.stem().string() + std::string(end) + std::string(suffix)))
        .string();
  };
  return {beside(""), evaluation_file(files) ? beside("-eval") : kSameFile};
}

namespace {

// The numbers that the network gives for one sample.
std::int64_t outputs_of(const NetworkFile& model) {
  if (model.targets.empty()) return 1;  // which is refused
  const ScriptTensor& target = model.targets.front();
  if (target.dtype == ScriptDtype::kInt64) return std::max<std::int64_t>(1, target.classes);
  return c10::multiply_integers(target.shape);
}

}  // namespace

TensorSpec spec_of(const ScriptTensor& tensor, TensorRole role) {
  TensorSpec spec;
  spec.name = tensor.name;
  spec.dtype = tensor.dtype == ScriptDtype::kInt64 ? at::kLong : at::kFloat;
  spec.shape = tensor.shape;
  spec.range = tensor.classes;
  spec.range_key = "classes";
  spec.role = role;
  return spec;
}

ModelTraits traits_of_network(const NetworkFile& model, const LossKind& loss) {
  ModelTraits traits;
  for (const ScriptTensor& each : model.inputs) {
    traits.sample.tensors.push_back(spec_of(each, TensorRole::kInput));
  }
  for (const ScriptTensor& each : model.targets) {
    traits.sample.tensors.push_back(spec_of(each, TensorRole::kTarget));
    const bool is_answer = loss.target_meaning() == TargetMeaning::kAnswers;
    if (is_answer && each.dtype == ScriptDtype::kFloat32) traits.sample.tensors.back().range = 2;
  }
  if (!model.inputs.empty() && !model.targets.empty()) traits.sample.count_tokens();
  if (!loss.is_of_model()) traits.sample.allow_weights();
  traits.outputs = outputs_of(model);
  traits.outputs_key = "targets";
  if (!model.targets.empty()) {
    for (const ScriptTensor& each : network_predictions(model, loss)) {
      traits.output_tensors.push_back(spec_of(each, TensorRole::kInput));
    }
  }
  traits.has_meta_kernels = false;
  return traits;
}

std::vector<std::string> output_names(const NetworkFile& options) {
  std::vector<std::string> names;
  for (const ScriptTensor& each : options.outputs) names.push_back(each.name);
  return names;
}

}  // namespace troika
