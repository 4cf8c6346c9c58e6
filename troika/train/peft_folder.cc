#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/checkpoint/tensors.h>
#include <troika/models/adapter_names.h>
#include <troika/train/empty_folder.h>
#include <troika/train/hub_folder.h>
#include <troika/train/peft_folder.h>
#include <troika/train/program_export.h>
#include <troika/train/run_tensors.h>

#include <algorithm>

namespace troika {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kWeight = ".weight";

std::string without_weight(const std::string& name) {
  return name.substr(0, name.size() - kWeight.size());
}

// The tensor there that has the weight of a layer; null where names are ours.
const JoinedTensor* tensor_of(const std::vector<JoinedTensor>& tensors, const std::string& layer) {
  const std::string weight = layer + std::string(kWeight);
  const auto found = std::ranges::find_if(tensors, [&](const JoinedTensor& each) {
    return std::ranges::count(each.parts, weight) > 0;
  });
  return found == tensors.end() ? nullptr : &*found;
}

void refuse_joined(const JoinedTensor& joined, const std::string& layer) {
  if (joined.parts.size() == 1) return;
  throw UsageError("adapter of " + quote(layer) + ": it is a part of " + quote(joined.name) +
                       " there, and peft has one pair for all of that",
                   "--merge writes the model with its adapters; adapter.match may leave out "
                   "q_proj, k_proj and v_proj of a GPT-2");
}

}  // namespace

std::vector<RenamedTensors> peft_names(const ModelOptions& model) {
  std::vector<RenamedTensors> names;
  for (const JoinedTensor& each : hub_tensors_of(model)) {
    const bool is_renamed = each.parts.size() == 1 && each.parts.front() != each.name;
    if (!is_renamed || !each.name.ends_with(kWeight)) continue;
    names.push_back({std::string(kPrefix) + without_weight(each.name) + ".*",
                     without_weight(each.parts.front()) + ".*"});
  }
  names.push_back({std::string(kPrefix) + "*", "*"});
  return names;
}

std::vector<std::string> export_to_peft(const PeftExport& options) {
  if (is_program_path(options.out)) {
    throw UsageError(shown_path(options.out) + ": the run has adapters, which are no program",
                     "--merge writes the program with its adapters; name a new folder for peft");
  }
  const Recipe recipe = recipe_of_export(options.run, options.step);
  const LoraOptions* const lora = recipe.model.adapter.lora();
  check(lora != nullptr, "a run without adapters leaves for peft");
  const auto source = open_run_tensors(options.run, options.step);
  const auto tensors = hub_tensors_of(recipe.model);
  const Model model = build_model(recipe.model, static_cast<std::uint64_t>(recipe.seed));
  PeftAdapter adapter;
  adapter.options = *lora;
  if (!tensors.empty()) adapter.task = "CAUSAL_LM";
  std::vector<NamedTensor> values;
  for (const std::string& layer : model.linear_layers) {
    const JoinedTensor* const joined = tensor_of(tensors, layer);
    const std::string there = joined != nullptr ? without_weight(joined->name) : layer;
    adapter.layers.push_back(there);
    if (std::ranges::count(model.adapted_layers, layer) == 0) continue;
    if (joined != nullptr) refuse_joined(*joined, layer);
    adapter.adapted.push_back(there);
    adapter.stores_transposed |= joined != nullptr && joined->transposed;
    for (const std::string_view end : {kLoraA, kLoraB}) {
      const TensorEntry& entry = source->at(layer + std::string(end));
      values.push_back({std::string(kPrefix) + there + std::string(end), source->load(entry)});
    }
  }
  make_empty_folder(options.out);
  save_tensors(options.out / kPeftTensors, values, {{"format", "pt"}});
  write_file_atomically(options.out / kPeftConfig, peft_config(adapter));
  return {kPeftTensors, kPeftConfig};
}

}  // namespace troika
