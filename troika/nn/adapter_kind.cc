// The kinds of adapters that there are, and the file in which `peft` describes one.
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/nn/adapter_kind.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMostConfigBytes = std::uint64_t{1} << 24;
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // of a safetensors file

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

// Keys of `peft` that say where an adapter comes from, how its file is laid out or how its pairs
// were drawn at first; and those that are read here. All others change what a layer computes, or
// may in a release to come.
constexpr std::array<std::string_view, 19> kKnownKeys = {"peft_type",
                                                         "task_type",
                                                         "auto_mapping",
                                                         "peft_version",
                                                         "base_model_name_or_path",
                                                         "revision",
                                                         "r",
                                                         "target_modules",
                                                         "lora_alpha",
                                                         "lora_dropout",
                                                         "fan_in_fan_out",
                                                         "use_rslora",
                                                         "init_lora_weights",
                                                         "inference_mode",
                                                         "megatron_core",
                                                         "eva_config",
                                                         "runtime_config",
                                                         "qalora_group_size",
                                                         "bias"};
// Those that choose layers besides target_modules: the names of the tensors say what they chose.
constexpr std::array<std::string_view, 3> kChoosingKeys = {"exclude_modules", "layers_to_transform",
                                                           "layers_pattern"};

bool is_idle(const Json& value) {
  return value.is_null() || value == false ||
         (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         ((value.is_object() || value.is_array()) && value.empty());
}

// Reads an adapter_config.json, key by key.
class PeftConfig {
 public:
  explicit PeftConfig(const std::filesystem::path& file)
      : title_(shown_path(file)),
        json_(Json::parse(read_file(file, kMostConfigBytes), nullptr, /*allow_exceptions=*/false)) {
    if (!json_.is_object()) throw DataError(title_ + " is not JSON");
  }

  // Returns a whole number from 1.
  [[nodiscard]] std::int64_t size(const char* key, std::int64_t most) const {
    const bool is_whole = json_.contains(key) && json_.at(key).is_number_integer();
    const double value = is_whole ? json_.at(key).get<double>() : 0;
    if (value < 1 || value > static_cast<double>(most)) {
      fail(key, "is missing, or no number that an adapter can have");
    }
    return json_.at(key).get<std::int64_t>();
  }
  [[nodiscard]] double number(const char* key, const NumberRange& range,
                              std::optional<double> absent = std::nullopt) const {
    if (absent && !json_.contains(key)) return *absent;
    const bool is_there = json_.contains(key) && json_.at(key).is_number();
    if (!is_there || !range.contains(json_.at(key).get<double>())) {
      fail(key, "is missing, or no number that an adapter can have");
    }
    return json_.at(key).get<double>();
  }
  // Refuses what may change the arithmetic: a key that is not known and says something.
  void refuse_unknown(bool layers_are_known) const {
    for (const auto& [key, value] : json_.items()) {
      const bool is_known = std::ranges::count(kKnownKeys, key) > 0 ||
                            (layers_are_known && std::ranges::count(kChoosingKeys, key) > 0);
      if (!is_known && !is_idle(value)) refuse(key, "train the adapter without " + key);
    }
    if (json_.contains("bias") && json_.at("bias") != "none") {
      refuse("bias", "train the adapter with bias = \"none\"");
    }
    constexpr std::array<std::string_view, 3> kDraws = {"gaussian", "orthogonal", "eva"};
    const Json drawn = json_.value("init_lora_weights", Json(true));
    const bool leaves_base =
        drawn.is_boolean() || drawn.is_null() ||
        (drawn.is_string() && std::ranges::count(kDraws, drawn.get<std::string>()) > 0);
    if (!leaves_base) {
      refuse("init_lora_weights = " + shortened(drawn.dump()),
             "it may change the base; peft converts such an adapter where save_pretrained() is "
             "given path_initial_model_for_weight_conversion");
    }
  }
  [[nodiscard]] bool flag(const char* key) const {
    if (!json_.contains(key) || json_.at(key).is_null()) return false;
    if (!json_.at(key).is_boolean()) fail(key, "is neither true nor false");
    return json_.at(key).get<bool>();
  }
  [[nodiscard]] std::string text(const char* key) const {
    const bool is_there = json_.contains(key) && json_.at(key).is_string();
    return is_there ? json_.at(key).get<std::string>() : "";
  }
  // A pattern of Python's gives none.
  [[nodiscard]] std::vector<std::string> target_modules() const {
    constexpr const char* kTargets = "target_modules";
    if (text(kTargets) == "all-linear") return {"*"};
    if (!text(kTargets).empty()) return {};
    std::vector<std::string> names;
    const bool is_list = json_.contains(kTargets) && json_.at(kTargets).is_array();
    for (const Json& each : is_list ? json_.at(kTargets) : Json::array()) {
      names.push_back(each.is_string() ? each.get<std::string>() : "");
      const bool is_odd = names.back().find_first_of("*?[]\\/ \t\n") != std::string::npos;
      if (names.back().empty() || is_odd) {
        fail(kTargets, "has " + shortened(each.dump()) + ", which is no name of a layer");
      }
    }
    if (names.empty()) fail(kTargets, "is no list of names of layers");
    return names;
  }
  [[noreturn]] void fail(const std::string& key, const std::string& what,
                         const std::string& hint = "") const {
    throw DataError(title_ + ": " + key + " " + what, hint);
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& hint) const {
    fail(key, "has no counterpart here", hint);
  }
  static std::string shortened(const std::string& text) { return text.substr(0, 80); }

  std::string title_;
  Json json_;
};

// Returns the layers that a file of adapters has pairs beside: peft's own choice of them, whatever
// described it. Empty where there is no such file; that it can be read is checked with its values.
std::vector<std::string> layers_with_pairs(const std::filesystem::path& file) {
  constexpr std::string_view kPrefix = "base_model.model.";
  std::vector<std::string> layers;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return layers;
  std::ifstream stream(file, std::ios::binary);
  std::array<unsigned char, 8> length = {};
  stream.read(reinterpret_cast<char*>(length.data()), length.size());
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < length.size(); ++i) bytes |= std::uint64_t{length[i]} << (8 * i);
  const std::uint64_t most = std::min(std::filesystem::file_size(file, ignored), kMostHeaderBytes);
  if (!stream || bytes > most) return layers;
  std::string header(bytes, '\0');
  stream.read(header.data(), static_cast<std::streamsize>(bytes));
  const Json json = Json::parse(header, nullptr, /*allow_exceptions=*/false);
  if (!stream || !json.is_object()) return layers;
  for (const auto& [name, ignored_place] : json.items()) {
    if (!name.ends_with(kLoraA)) continue;
    const std::size_t begin = name.starts_with(kPrefix) ? kPrefix.size() : 0;
    layers.push_back(name.substr(begin, name.size() - kLoraA.size() - begin));
  }
  return layers;
}

// The last part of a name, as "q_proj".
std::string last_part(const std::string& layer) {
  return layer.substr(layer.rfind('.') + 1);
}

// The pattern of Python's that fits these names alone.
std::string python_pattern(const std::vector<std::string>& names) {
  std::string pattern;
  for (const std::string& name : names) {
    pattern += pattern.empty() ? "(" : "|";
    for (const char letter : name) {
      const bool is_word = std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
      pattern += is_word ? std::string(1, letter) : std::string("\\") + letter;
    }
  }
  return pattern + ")";
}

// Names that `peft` finds just these layers by. In the libraries' own classes a last part is enough
// where all layers that have it are adapted; elsewhere it may also be that of other modules, as "0"
// is in lists. Where whole names are the ends of others, a pattern of Python's tells them apart.
Json target_modules(const PeftAdapter& adapter) {
  const bool is_known_class = !adapter.task.empty();
  std::map<std::string, std::size_t> all;
  for (const std::string& each : adapter.layers) ++all[last_part(each)];
  std::map<std::string, std::vector<std::string>> chosen;
  for (const std::string& each : adapter.adapted) chosen[last_part(each)].push_back(each);
  std::vector<std::string> names;
  bool is_exact = true;
  for (const auto& [part, of_part] : chosen) {
    if (is_known_class && of_part.size() == all[part]) {
      names.push_back(part);
      continue;
    }
    for (const std::string& each : of_part) {
      is_exact = is_exact && each != part;  // one word may be the end of any name
      for (const std::string& other : adapter.layers) {
        is_exact = is_exact && !other.ends_with("." + each);
      }
      names.push_back(each);
    }
  }
  return is_exact ? Json(names) : Json(python_pattern(names));
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
  constexpr std::int64_t kMostRank = 65536;
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
  const std::vector<std::string> layers =
      layers_with_pairs(std::filesystem::path(folder) / "adapter_model.safetensors");
  config.refuse_unknown(/*layers_are_known=*/!layers.empty());
  LoraOptions options;
  options.from = folder;
  options.rank = config.size("r", kMostRank);
  options.alpha = config.number("lora_alpha", ranges::kAboveZero);
  if (config.flag("use_rslora")) options.alpha *= std::sqrt(static_cast<double>(options.rank));
  options.dropout = config.number("lora_dropout", ranges::kBelowOne, /*absent=*/0.0);
  options.match = config.target_modules();
  if (!layers.empty()) options.match = layers;
  if (options.match.empty()) {
    config.fail("target_modules", "is no list of names of layers",
                "a pattern of Python has to be written anew: adapter.match = [\"q_proj\"]");
  }
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
  json["target_modules"] = target_modules(adapter);
  json["bias"] = "none";
  json["fan_in_fan_out"] = adapter.stores_transposed;
  json["use_rslora"] = false;
  json["use_dora"] = false;
  return json.dump(kIndent) + "\n";
}

}  // namespace troika
