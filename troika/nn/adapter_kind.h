// The section [adapter] of a recipe: what is trained beside the frozen parameters of a model.
#pragma once

#include <troika/config/component.h>
#include <troika/nn/lora_options.h>

#include <span>
#include <string>
#include <vector>

namespace troika {

// A kind that [adapter] can name.
class AdapterKind : public Component {
 public:
  // Returns every kind that there is.
  [[nodiscard]] static std::span<const AdapterKind* const> all();
  [[nodiscard]] static const AdapterKind& default_kind();

  // Returns the options of the pairs beside linear layers; null where the model itself is trained.
  [[nodiscard]] virtual const LoraOptions* lora(const Options& options) const = 0;
};

// The adapter that a recipe has chosen.
class AdapterOptions : public Chosen<AdapterKind> {
 public:
  using Chosen::Chosen;
  AdapterOptions() = default;

  // Returns null where the model itself is trained.
  [[nodiscard]] const LoraOptions* lora() const { return kind().lora(options()); }
  bool operator==(const AdapterOptions&) const = default;
};

[[nodiscard]] const AdapterKind& no_adapter_kind();
[[nodiscard]] const AdapterKind& lora_kind();

// The options that a folder of the package `peft` has in its adapter_config.json, with `from` the
// folder. Throws DataError naming the file and the key that is missing or has no counterpart here.
[[nodiscard]] LoraOptions read_peft_config(const std::string& folder);
// An adapter that leaves for `peft`, with names as Python has them.
struct PeftAdapter {
  LoraOptions options;
  std::vector<std::string> layers;   // all linear layers
  std::vector<std::string> adapted;  // those with a pair
  std::string task;                  // "CAUSAL_LM"; empty: any
  bool stores_transposed = false;    // the weights of these layers are [inputs, outputs] there
};
// Returns the text of its adapter_config.json.
[[nodiscard]] std::string peft_config(const PeftAdapter& adapter);

}  // namespace troika
