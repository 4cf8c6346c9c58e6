// Reads the config.json of a published model.
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/models/gpt/hub.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kElsewhere =
    "; any network of Python's trains with [model] kind = \"exported\" "
    "(docs/how-to/from-python.md)";

// Reads fields of a config.json; errors name the file and the field.
class HubConfig {
 public:
  // `table` is what the fields are in, as "rope_scaling."; "" where it is the file itself.
  HubConfig(const Json& json, const std::string& source, std::string table = "")
      : json_(json), source_(source), table_(std::move(table)) {}

  template <class T>
  [[nodiscard]] std::optional<T> find(const char* field) const {
    const auto found = json_.find(field);
    if (found == json_.end() || found->is_null()) return std::nullopt;
    try {
      return found->get<T>();
    } catch (const Json::exception&) {
      fail(field);
    }
  }
  template <class T>
  [[nodiscard]] T need(const char* field) const {
    if (auto value = find<T>(field)) return *std::move(value);
    throw DataError(named(field) + " is missing");
  }
  [[nodiscard]] std::int64_t size(const char* field) const {
    return in_range(field, need<double>(field));
  }
  [[nodiscard]] std::optional<std::int64_t> find_size(const char* field) const {
    const auto value = find<double>(field);
    if (!value) return std::nullopt;
    return in_range(field, *value);
  }
  [[nodiscard]] std::int64_t size_or(const char* field, std::int64_t otherwise) const {
    return find_size(field).value_or(otherwise);
  }
  [[nodiscard]] double positive(const char* field) const {
    const auto value = need<double>(field);
    if (!(value > 0) || !std::isfinite(value)) fail(field);
    return value;
  }
  [[nodiscard]] double positive_or(const char* field, double otherwise) const {
    return find<double>(field) ? positive(field) : otherwise;
  }
  // Returns whether the file has the field, be it with null.
  [[nodiscard]] bool has(const char* field) const { return json_.contains(field); }
  // Refuses a field that says what a gpt does not do; `why` is a clause.
  [[noreturn]] void refuse(const char* field, const std::string& why) const {
    throw DataError(
        named(field) + " = " + json_.at(field).dump() + " has no counterpart in kind = \"gpt\"",
        why + kElsewhere);
  }
  template <class T>
  void refuse_unless(const char* field, const T& done, const std::string& why) const {
    const auto value = find<T>(field);
    if (value && *value != done) refuse(field, why);
  }
  // "'config.json': rope_scaling.factor".
  [[nodiscard]] std::string named(const char* field) const {
    return source_ + ": " + table_ + field;
  }

 private:
  [[noreturn]] void fail(const char* field) const {
    throw DataError(named(field) + " is " + quote(json_.at(field).dump()));
  }
  [[nodiscard]] std::int64_t in_range(const char* field, double value) const {
    if (value >= 1 && value <= static_cast<double>(ranges::kSize.max) &&
        value == static_cast<double>(static_cast<std::int64_t>(value))) {
      return static_cast<std::int64_t>(value);
    }
    fail(field);
  }

  const Json& json_;
  const std::string& source_;
  std::string table_;
};

// The models of Llama's shape that come in, and what their classes take where a file says nothing.
struct HubFamily {
  std::string_view model_type;
  std::int64_t kv_heads;  // 0: as many as heads
  std::int64_t head_dim;  // 0: hidden_size / heads
  bool has_qkv_bias = false;
  bool has_qk_norm = false;
  // The fields below are read by the classes of these models alone.
  bool has_mlp_bias = false;
  bool has_attention_bias = false;
  bool may_slide = false;  // sliding_window holds without use_sliding_window
  bool has_use_sliding_window = false;
};
constexpr HubFamily kHubFamilies[] = {
    {.model_type = "llama",
     .kv_heads = 0,
     .head_dim = 0,
     .has_mlp_bias = true,
     .has_attention_bias = true},
    {.model_type = "mistral", .kv_heads = 8, .head_dim = 0, .may_slide = true},
    {.model_type = "qwen2",
     .kv_heads = 32,
     .head_dim = 0,
     .has_qkv_bias = true,
     .has_use_sliding_window = true},
    {.model_type = "qwen3",
     .kv_heads = 32,
     .head_dim = 128,
     .has_qk_norm = true,
     .has_attention_bias = true,
     .has_use_sliding_window = true}};

// Sets the rotary positions of a model whose other fields are read. `rope_scaling` is of releases
// of the libraries before 5, and counts where both are there.
void read_rope(const Json& json, const std::string& source, GptOptions& model) {
  const HubConfig config(json, source);
  const auto table_of = [&](const char* field) {
    return config.find<Json>(field).value_or(Json::object());
  };
  const bool is_old = !table_of("rope_scaling").empty();
  const char* const field = is_old ? "rope_scaling" : "rope_parameters";
  const Json table = table_of(field);
  if (!table.is_object()) config.refuse(field, "it is a table with rope_type");
  for (const Json& value : table) {
    if (value.is_structured()) config.refuse(field, "all layers turn alike");
  }
  const HubConfig rope(table, source, std::string(field) + ".");
  for (const HubConfig& each : {config, rope}) {
    each.refuse_unless("partial_rotary_factor", 1.0, "all pairs of a head turn");
  }
  model.rope_theta =
      rope.positive_or("rope_theta", config.positive_or("rope_theta", model.rope_theta));
  const char* const type_field = rope.has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.find<std::string>(type_field).value_or("default");
  if (type == "default") return;
  if (type != "linear" && type != "llama3") {
    rope.refuse(type_field, "default, linear and llama3 have one");
  }
  model.rope_factor = rope.positive("factor");
  model.rope_scaling = ops::RotaryScaling::kLinear;
  if (type == "linear") return;
  model.rope_scaling = ops::RotaryScaling::kLlama3;
  model.rope_low_freq_factor = rope.positive("low_freq_factor");
  model.rope_high_freq_factor = rope.positive("high_freq_factor");
  if (model.rope_low_freq_factor >= model.rope_high_freq_factor) {
    throw DataError(rope.named("low_freq_factor") + " is not below high_freq_factor");
  }
  constexpr const char* kOriginal = "original_max_position_embeddings";
  model.rope_original_len = config.size_or(kOriginal, rope.size_or(kOriginal, model.seq_len));
}

// Returns the tokens that some layer reads at most; nothing where all layers read all of them.
std::optional<std::int64_t> window_of(const HubConfig& config, const HubFamily& family,
                                      const GptOptions& model) {
  constexpr std::int64_t kDefaultWindow = 4096, kDefaultFullLayers = 28;
  const bool is_on = family.may_slide || (family.has_use_sliding_window &&
                                          config.find<bool>("use_sliding_window").value_or(false));
  if (!is_on) return std::nullopt;
  if (!config.has("sliding_window")) return kDefaultWindow;
  const auto window = config.find_size("sliding_window");
  if (family.may_slide) return window;
  if (const auto types = config.find<std::vector<std::string>>("layer_types")) {
    return std::ranges::count(*types, "sliding_attention") > 0 ? window : std::nullopt;
  }
  const auto full = config.find<double>("max_window_layers").value_or(kDefaultFullLayers);
  return full < static_cast<double>(model.layers) ? window : std::nullopt;
}

void refuse_windows(const HubConfig& config, const HubFamily& family, const GptOptions& model) {
  for (const std::string& type :
       config.find<std::vector<std::string>>("layer_types").value_or(std::vector<std::string>())) {
    if (type == "full_attention" || type == "sliding_attention") continue;
    config.refuse("layer_types", "every layer reads all earlier tokens");
  }
  const auto window = window_of(config, family, model);
  if (!window || *window >= model.seq_len) return;
  const std::string tokens = std::to_string(*window);
  throw DataError(config.named("sliding_window") + " = " + tokens +
                      " has no counterpart in kind = \"gpt\", whose attention reads all of " +
                      "max_position_embeddings = " + std::to_string(model.seq_len),
                  "with max_position_embeddings = " + tokens +
                      " there it comes in, as such a window leaves nothing out" + kElsewhere);
}

void read_biases(const HubConfig& config, const HubFamily& family, GptOptions& model) {
  if (!family.has_attention_bias) return;
  if (!family.has_mlp_bias) {
    config.refuse_unless("attention_bias", false, "beside norms of q and k there are no biases");
    return;
  }
  model.bias = config.find<bool>("attention_bias").value_or(false);
  const bool of_mlp = config.find<bool>("mlp_bias").value_or(false);
  if (of_mlp == model.bias) return;
  config.refuse(of_mlp ? "mlp_bias" : "attention_bias",
                "attention and feed-forward layers both have biases, or neither has");
}

void check_heads(const HubConfig& config, const GptOptions& model) {
  if (model.heads % model.kv_heads != 0) {
    throw DataError(config.named("num_key_value_heads") + " = " + std::to_string(model.kv_heads) +
                    " does not divide num_attention_heads = " + std::to_string(model.heads));
  }
  if (model.head_dim % 2 != 0) {
    throw DataError(config.named("head_dim") + " = " + std::to_string(model.head_dim) +
                    " is odd, and rotary positions turn pairs");
  }
}

// Refuses a model that tells classes apart, by its class of the libraries.
void refuse_other_heads(const HubConfig& config) {
  constexpr const char* kField = "architectures";
  for (const std::string& each :
       config.find<std::vector<std::string>>(kField).value_or(std::vector<std::string>())) {
    const bool has_other = each.find("For") != std::string::npos && !each.ends_with("ForCausalLM");
    if (has_other) config.refuse(kField, "its head predicts the next token");
  }
}

GptOptions read_llama(const Json& json, const std::string& source, const HubFamily& family) {
  const HubConfig config(json, source);
  if (config.find<Json>("quantization_config")) {
    config.refuse("quantization_config", "values are floating-point numbers: save them so first");
  }
  config.refuse_unless<std::string>("hidden_act", "silu", "its gated activation is swiglu");
  GptOptions model;
  model.layers = config.size("num_hidden_layers");
  model.dim = config.size("hidden_size");
  model.heads = config.size("num_attention_heads");
  const bool names_heads = config.has("num_key_value_heads") || family.kv_heads == 0;
  model.kv_heads =
      config.size_or("num_key_value_heads", names_heads ? model.heads : family.kv_heads);
  model.head_dim = config.size_or(
      "head_dim",
      family.head_dim > 0 ? family.head_dim : std::max<std::int64_t>(1, model.dim / model.heads));
  model.ffn_dim = config.size("intermediate_size");
  model.vocab_size = config.size("vocab_size");
  model.seq_len = config.size("max_position_embeddings");
  constexpr double kDefaultEps = 1e-6;
  model.norm_eps = config.positive_or("rms_norm_eps", kDefaultEps);
  model.tied_embeddings = config.find<bool>("tie_word_embeddings").value_or(false);
  model.qkv_bias = family.has_qkv_bias;
  model.qk_norm = family.has_qk_norm;
  read_biases(config, family, model);
  read_rope(json, source, model);
  refuse_windows(config, family, model);
  check_heads(config, model);
  return model;
}

ActivationFunction gpt2_activation(const HubConfig& config) {
  const std::string name = config.find<std::string>("activation_function").value_or("gelu_new");
  if (name == "gelu") return ActivationFunction::kGelu;
  if (name == "gelu_pytorch_tanh") return ActivationFunction::kGeluTanh;
  config.refuse_unless<std::string>("activation_function", "gelu_new",
                                    "gelu, gelu_new and gelu_pytorch_tanh have one");
  return ActivationFunction::kGeluTanh;
}

GptOptions read_gpt2(const Json& json, const std::string& source) {
  const HubConfig config(json, source);
  GptOptions model;
  model.layers = config.size("n_layer");
  model.dim = config.size("n_embd");
  model.heads = config.size("n_head");
  model.kv_heads = model.heads;
  model.head_dim = std::max<std::int64_t>(1, model.dim / model.heads);
  constexpr std::int64_t kInner = 4;  // times the width, by default
  model.ffn_dim = config.size_or("n_inner", kInner * model.dim);
  model.vocab_size = config.size("vocab_size");
  model.seq_len = config.size("n_positions");
  model.norm = Norm::kLayerNorm;
  model.norm_eps = config.find<double>("layer_norm_epsilon").value_or(model.norm_eps);
  model.position = Position::kLearned;
  model.activation = gpt2_activation(config);
  model.tied_embeddings = config.find<bool>("tie_word_embeddings").value_or(true);
  model.bias = true;
  config.refuse_unless("scale_attn_weights", true, "scores are divided by the root of head_dim");
  config.refuse_unless("scale_attn_by_inverse_layer_idx", false, "layers are alike");
  config.refuse_unless("add_cross_attention", false, "there is no encoder");
  return model;
}

}  // namespace

std::optional<GptOptions> read_hub_config(std::string_view json, const std::string& source) {
  const Json config = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) throw DataError(source + " is not JSON");
  const HubConfig fields(config, source);
  const std::string type = fields.need<std::string>("model_type");
  const auto* const family = std::ranges::find(kHubFamilies, type, &HubFamily::model_type);
  if (type != "gpt2" && family == std::end(kHubFamilies)) return std::nullopt;
  refuse_other_heads(fields);
  return type == "gpt2" ? read_gpt2(config, source) : read_llama(config, source, *family);
}

}  // namespace troika
