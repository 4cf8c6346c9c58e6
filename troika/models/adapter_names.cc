#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/models/adapter_names.h>
#include <troika/nn/lora.h>

#include <string>
#include <string_view>

namespace troika {
namespace {

constexpr std::string_view kWeight = ".weight";

std::string layer_of(const std::string& weight) {
  return weight.substr(0, weight.size() - kWeight.size());
}

// The layers of ours that a pattern names as that class does.
std::vector<std::string> own_layers(const std::string& pattern,
                                    const std::vector<JoinedTensor>& tensors) {
  std::vector<std::string> layers;
  for (const JoinedTensor& each : tensors) {
    if (!each.name.ends_with(kWeight) || each.parts.front() == each.name) continue;
    if (!fits_layer(pattern, layer_of(each.name))) continue;
    if (each.parts.size() > 1) {
      throw UsageError("[adapter] match: " + quote(pattern, 200) + " is " +
                           std::to_string(each.parts.size()) + " layers here, " +
                           layer_of(each.parts.front()) + " to " + layer_of(each.parts.back()) +
                           ": the one pair that peft has for them has no counterpart",
                       "name those layers: match = [\"q_proj\", \"v_proj\"]");
    }
    layers.push_back(layer_of(each.parts.front()));
  }
  return layers;
}

}  // namespace

std::vector<JoinedTensor> hub_tensors_of(const ModelOptions& model) {
  try {
    return model.kind().hub_form(model.options()).tensors;
  } catch (const UsageError&) {
    return {};
  }
}

LoraOptions with_own_names(LoraOptions lora, const ModelOptions& model) {
  const std::vector<JoinedTensor> tensors = hub_tensors_of(model);
  std::vector<std::string> match;
  for (const std::string& each : lora.match) {
    const bool is_plain = each.find_first_of("*?[") == std::string::npos;
    const std::vector<std::string> own =
        is_plain ? own_layers(each, tensors) : std::vector<std::string>();
    if (own.empty()) match.push_back(each);
    match.insert(match.end(), own.begin(), own.end());
  }
  lora.match = std::move(match);
  return lora;
}

}  // namespace troika
