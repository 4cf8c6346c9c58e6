// The kinds of adapters that there are, and the file in which `peft` describes one.
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/nn/adapter_kind.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMostConfigBytes = std::uint64_t{1} << 24;

struct NoKeys {
  bool operator==(const NoKeys&) const = default;
};

class NoAdapterKind final : public Declared<AdapterKind, NoKeys> {
 public:
  NoAdapterKind() : Declared("none", {}) {}

  [[nodiscard]] const LoraOptions* lora(const Options&) const override { return nullptr; }
};

// clang-format off
std::vector<Key> lora_keys() {
  using O = LoraOptions;
  using K = KeysOf<O>;
  return {
      K::integer<&O::rank>("rank", {1, 65536}, "rows of A and columns of B"),
      K::number<&O::alpha>("alpha", ranges::kAboveZero, "what a pair adds is multiplied by alpha / rank"),
      K::number<&O::dropout>("dropout", ranges::kBelowOne, "of what goes into A, in training"),
      K::texts<&O::match>("match", "linear layers that get a pair: ends of their names, as \"q_proj\", or shell patterns of whole names; \"*\": all"),
      K::text<&O::from>("from", "initial values: a folder with adapter_config.json and adapter_model.safetensors, as `peft` writes it; keys that are not written are as there; none: drawn"),
  };
}
// clang-format on

class LoraKind final : public Declared<AdapterKind, LoraOptions> {
 public:
  LoraKind() : Declared("lora", lora_keys()) {}

  // A recipe of a run has all keys: then the folder may be gone.
  void derive(Options& options, const Origins& origins) const override {
    auto& own = options.as<LoraOptions>();
    const std::array keys = {"adapter.rank", "adapter.alpha", "adapter.dropout", "adapter.match"};
    const bool is_complete =
        std::ranges::all_of(keys, [&](const char* key) { return origins.has(key); });
    if (own.from == LoraOptions::kDrawn || is_complete) return;
    const LoraOptions saved = read_peft_config(own.from);
    if (!origins.has(keys[0])) own.rank = saved.rank;
    if (!origins.has(keys[1])) own.alpha = saved.alpha;
    if (!origins.has(keys[2])) own.dropout = saved.dropout;
    if (!origins.has(keys[3])) own.match = saved.match;
  }

  void check(const Options& options, const Origins& origins) const override {
    if (!options.as<LoraOptions>().match.empty()) return;
    origins.fail({"adapter.match"}, "match: no linear layer would get a pair",
                 "write match = [\"*\"] for all");
  }

  [[nodiscard]] const LoraOptions* lora(const Options& options) const override {
    return &options.as<LoraOptions>();
  }
};

// Reads an adapter_config.json, key by key.
class PeftConfig {
 public:
  explicit PeftConfig(const std::filesystem::path& file)
      : title_(shown_path(file)),
        json_(Json::parse(read_file(file, kMostConfigBytes), nullptr, /*allow_exceptions=*/false)) {
    if (!json_.is_object()) throw DataError(title_ + " is not JSON");
  }

  [[nodiscard]] double number(const char* key, double least, double most) const {
    const bool is_there = json_.contains(key) && json_.at(key).is_number();
    const double value = is_there ? json_.at(key).get<double>() : -1;
    if (is_there && value >= least && value <= most) return value;
    throw DataError(title_ + ": " + key + " is missing, or no number that an adapter can have");
  }
  // Refuses what changes the arithmetic: a key that is there and says something.
  void refuse(const char* key, const char* instead) const {
    if (!json_.contains(key)) return;
    const Json& value = json_.at(key);
    const bool is_idle = value.is_null() || value == false || value == "none" ||
                         ((value.is_object() || value.is_array()) && value.empty());
    if (!is_idle) throw DataError(title_ + ": " + key + " has no counterpart here", instead);
  }
  [[nodiscard]] bool flag(const char* key) const {
    return json_.contains(key) && json_.at(key).is_boolean() && json_.at(key).get<bool>();
  }
  [[nodiscard]] std::string text(const char* key) const {
    const bool is_there = json_.contains(key) && json_.at(key).is_string();
    return is_there ? json_.at(key).get<std::string>() : "";
  }
  [[nodiscard]] std::vector<std::string> patterns() const {
    if (text("target_modules") == "all-linear") return {"*"};
    const bool is_list = json_.contains("target_modules") && json_.at("target_modules").is_array();
    std::vector<std::string> patterns;
    for (const Json& each : is_list ? json_.at("target_modules") : Json::array()) {
      const std::string name = each.is_string() ? each.get<std::string>() : "";
      if (name.empty() || name.find_first_of("*?[\\") != std::string::npos) continue;
      patterns.push_back(name);
    }
    if (!patterns.empty()) return patterns;
    throw DataError(title_ + ": target_modules is no list of names of layers",
                    "a pattern of Python has to be written anew: adapter.match = [\"q_proj\"]");
  }

 private:
  std::string title_;
  Json json_;
};

// The last part of a name, as "q_proj".
std::string last_part(const std::string& layer) {
  return layer.substr(layer.rfind('.') + 1);
}

// Names that `peft` finds just these layers by: a last part where all layers that have it are
// adapted, else whole names.
std::vector<std::string> target_modules(const std::vector<std::string>& layers,
                                        const std::vector<std::string>& adapted) {
  std::map<std::string, std::size_t> all;
  for (const std::string& each : layers) ++all[last_part(each)];
  std::map<std::string, std::vector<std::string>> chosen;
  for (const std::string& each : adapted) chosen[last_part(each)].push_back(each);
  std::vector<std::string> names;
  for (const auto& [part, of_part] : chosen) {
    if (of_part.size() == all[part]) {
      names.push_back(part);
    } else {
      names.insert(names.end(), of_part.begin(), of_part.end());
    }
  }
  return names;
}

}  // namespace

std::span<const AdapterKind* const> AdapterKind::all() {
  static const std::array kAll = {&no_adapter_kind(), &lora_kind()};
  return kAll;
}

const AdapterKind& AdapterKind::default_kind() {
  return no_adapter_kind();
}

const AdapterKind& no_adapter_kind() {
  static const NoAdapterKind kKind;
  return kKind;
}

const AdapterKind& lora_kind() {
  static const LoraKind kKind;
  return kKind;
}

LoraOptions read_peft_config(const std::string& folder) {
  constexpr double kMostRank = 65536, kMostAlpha = 1e9;
  const std::filesystem::path file = std::filesystem::path(folder) / "adapter_config.json";
  if (!std::filesystem::exists(file)) {
    throw DataError("[adapter] from: " + shown_path(folder) + " has no adapter_config.json",
                    "give the folder that save_pretrained() of a PeftModel has written, or "
                    "`troika checkpoint export`");
  }
  const PeftConfig config(file);
  if (config.text("peft_type") != "LORA") {
    throw DataError(shown_path(file) + ": peft_type " + quote(config.text("peft_type"), 200) +
                        " has no counterpart here",
                    "\"LORA\" has one");
  }
  config.refuse("use_dora", "train the adapter without use_dora");
  config.refuse("modules_to_save", "train the adapter without modules_to_save");
  config.refuse("rank_pattern", "all pairs have one rank");
  config.refuse("alpha_pattern", "all pairs have one alpha");
  config.refuse("bias", "train the adapter with bias = \"none\"");
  config.refuse("lora_bias", "train the adapter without lora_bias");
  config.refuse("layer_replication", "write the layers into the model first");
  config.refuse("target_parameters", "linear layers alone get a pair");
  LoraOptions options;
  options.from = folder;
  options.rank = static_cast<std::int64_t>(config.number("r", 1, kMostRank));
  options.alpha = config.number("lora_alpha", 0, kMostAlpha);
  if (config.flag("use_rslora")) options.alpha *= std::sqrt(static_cast<double>(options.rank));
  options.dropout = config.number("lora_dropout", 0, 1);
  options.match = config.patterns();
  return options;
}

std::string peft_config(const PeftAdapter& adapter) {
  constexpr int kIndent = 2;
  Json json;
  json["peft_type"] = "LORA";
  json["task_type"] = adapter.task.empty() ? Json() : Json(adapter.task);
  json["base_model_name_or_path"] = Json();
  json["inference_mode"] = true;
  json["r"] = adapter.options.rank;
  json["lora_alpha"] = adapter.options.alpha;
  json["lora_dropout"] = adapter.options.dropout;
  json["target_modules"] = target_modules(adapter.layers, adapter.adapted);
  json["bias"] = "none";
  json["fan_in_fan_out"] = adapter.stores_transposed;
  json["use_rslora"] = false;
  json["use_dora"] = false;
  return json.dump(kIndent) + "\n";
}

}  // namespace troika
