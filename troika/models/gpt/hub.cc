#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/models/gpt/hub.h>
#include <troika/models/gpt/vocabulary.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

// A choice of the recipe that a form demands.
struct Demand {
  bool is_met;
  std::string choice;  // `position = "rope"`
  std::string wanted;  // `position = "learned"`
};

template <class Enum>
std::string quoted(Enum value) {
  return "\"" + std::string(name_of(value)) + "\"";
}

std::string choice(std::string_view key, const std::string& value) {
  return std::string(key) + " = " + value;
}

[[noreturn]] void refuse(const Demand& demand, const std::string& form, const std::string& norm) {
  throw UsageError("[model] " + demand.choice + " has no counterpart in Hugging Face's " + form +
                       ", as which a model with " + norm + " leaves",
                   "train with " + demand.wanted +
                       "; what other programs read of any model is model.safetensors");
}

void refuse_unmet(std::span<const Demand> demands, const std::string& form,
                  const std::string& norm) {
  const auto unmet = std::ranges::find(demands, false, &Demand::is_met);
  if (unmet != demands.end()) refuse(*unmet, form, norm);
}

void check_llama(const GptOptions& model) {
  const std::array demands{
      Demand{model.position == Position::kRope, choice("position", quoted(model.position)),
             choice("position", quoted(Position::kRope))},
      Demand{model.activation == ActivationFunction::kSwiGlu,
             choice("activation", quoted(model.activation)),
             choice("activation", quoted(ActivationFunction::kSwiGlu))}};
  refuse_unmet(demands, "Llama", choice("norm", quoted(model.norm)));
}

void check_gpt2(const GptOptions& model) {
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  const std::array demands{
      Demand{model.position == Position::kLearned, choice("position", quoted(model.position)),
             choice("position", quoted(Position::kLearned))},
      Demand{model.activation != ActivationFunction::kSwiGlu,
             choice("activation", quoted(model.activation)),
             choice("activation", quoted(ActivationFunction::kGeluTanh))},
      Demand{model.bias, "bias = false", "bias = true"},
      Demand{model.kv_heads == model.heads, choice("kv_heads", number(model.kv_heads)),
             choice("kv_heads", number(model.heads))},
      Demand{model.head_dim * model.heads == model.dim, choice("head_dim", number(model.head_dim)),
             "head_dim = dim / heads"}};
  refuse_unmet(demands, "GPT-2", choice("norm", quoted(model.norm)));
}

Json llama_config(const GptOptions& model) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", model.vocab_size},
          {"hidden_size", model.dim},
          {"intermediate_size", model.ffn_dim},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.heads},
          {"num_key_value_heads", model.kv_heads},
          {"head_dim", model.head_dim},
          {"hidden_act", "silu"},
          {"max_position_embeddings", model.seq_len},
          {"rms_norm_eps", model.norm_eps},
          // For releases before 5 and since.
          {"rope_theta", model.rope_theta},
          {"rope_parameters", {{"rope_theta", model.rope_theta}, {"rope_type", "default"}}},
          {"attention_bias", model.bias},
          {"mlp_bias", model.bias},
          {"tie_word_embeddings", model.tied_embeddings},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr}};
}

Json gpt2_config(const GptOptions& model) {
  const bool exact = model.activation == ActivationFunction::kGelu;
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", model.vocab_size},
          {"n_embd", model.dim},
          {"n_inner", model.ffn_dim},
          {"n_layer", model.layers},
          {"n_head", model.heads},
          {"n_positions", model.seq_len},
          {"activation_function", exact ? "gelu" : "gelu_new"},
          {"layer_norm_epsilon", model.norm_eps},
          {"resid_pdrop", model.dropout},
          {"embd_pdrop", 0.0},
          {"attn_pdrop", 0.0},
          {"tie_word_embeddings", model.tied_embeddings},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr}};
}

// The parameters of the layers and outside, by our names.
class HubTensors {
 public:
  explicit HubTensors(const GptOptions& model) : model_(model) {}

  [[nodiscard]] std::vector<JoinedTensor> of_llama() {
    same("model.embed_tokens.weight");
    for (std::int64_t layer = 0; layer < model_.layers; ++layer) {
      const std::string in_layer = "model.layers." + std::to_string(layer) + ".";
      for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
        same(in_layer + norm + ".weight");
      }
      for (const char* linear :
           {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
        same(in_layer + linear + ".weight");
        if (model_.bias) same(in_layer + linear + ".bias");
      }
    }
    same("model.norm.weight");
    if (!model_.tied_embeddings) same("lm_head.weight");
    return std::move(tensors_);
  }

  [[nodiscard]] std::vector<JoinedTensor> of_gpt2() {
    renamed("transformer.wte.weight", "model.embed_tokens.weight");
    renamed("transformer.wpe.weight", "model.embed_positions.weight");
    for (std::int64_t layer = 0; layer < model_.layers; ++layer) add_gpt2_layer(layer);
    for (const char* kind : {".weight", ".bias"}) {
      renamed(std::string("transformer.ln_f") + kind, std::string("model.norm") + kind);
    }
    if (!model_.tied_embeddings) same("lm_head.weight");
    return std::move(tensors_);
  }

 private:
  void same(const std::string& name) { renamed(name, name); }
  void renamed(const std::string& theirs, const std::string& ours) {
    tensors_.push_back({theirs, {ours}});
  }

  void add_gpt2_layer(std::int64_t layer) {
    const std::string ours = "model.layers." + std::to_string(layer) + ".";
    const std::string theirs = "transformer.h." + std::to_string(layer) + ".";
    for (const char* kind : {".weight", ".bias"}) add_gpt2_parameters(theirs, ours, kind);
  }

  // The weights of a layer, or its biases.
  void add_gpt2_parameters(const std::string& theirs, const std::string& ours,
                           const std::string& kind) {
    const bool transposed = kind == ".weight";
    renamed(theirs + "ln_1" + kind, ours + "input_layernorm" + kind);
    renamed(theirs + "ln_2" + kind, ours + "post_attention_layernorm" + kind);
    tensors_.push_back({theirs + "attn.c_attn" + kind,
                        {ours + "self_attn.q_proj" + kind, ours + "self_attn.k_proj" + kind,
                         ours + "self_attn.v_proj" + kind},
                        transposed});
    tensors_.push_back(
        {theirs + "attn.c_proj" + kind, {ours + "self_attn.o_proj" + kind}, transposed});
    tensors_.push_back({theirs + "mlp.c_fc" + kind, {ours + "mlp.up_proj" + kind}, transposed});
    tensors_.push_back({theirs + "mlp.c_proj" + kind, {ours + "mlp.down_proj" + kind}, transposed});
  }

  const GptOptions& model_;
  std::vector<JoinedTensor> tensors_;
};

// Reads fields of a config.json; errors name the file and the field.
class HubConfig {
 public:
  HubConfig(const Json& json, const std::string& source) : json_(json), source_(source) {}

  template <class T>
  [[nodiscard]] std::optional<T> find(const char* field) const {
    const auto found = json_.find(field);
    if (found == json_.end() || found->is_null()) return std::nullopt;
    try {
      return found->get<T>();
    } catch (const Json::exception&) {
      throw DataError(source_ + ": " + field + " is " + quote(found->dump()));
    }
  }
  template <class T>
  [[nodiscard]] T need(const char* field) const {
    if (auto value = find<T>(field)) return *std::move(value);
    throw DataError(source_ + ": " + field + " is missing");
  }
  [[nodiscard]] std::int64_t size(const char* field) const {
    return in_range(field, need<double>(field));
  }
  [[nodiscard]] std::int64_t size_or(const char* field, std::int64_t otherwise) const {
    const auto value = find<double>(field);
    return value ? in_range(field, *value) : otherwise;
  }
  // Refuses a field that says what a gpt does not do.
  template <class T>
  void refuse_unless(const char* field, const T& done, const std::string& why) const {
    const auto value = find<T>(field);
    if (!value || *value == done) return;
    throw DataError(source_ + ": " + field + " = " + json_.at(field).dump() +
                        " has no counterpart in kind = \"gpt\"",
                    why);
  }

 private:
  [[nodiscard]] std::int64_t in_range(const char* field, double value) const {
    if (value >= 1 && value <= static_cast<double>(ranges::kSize.max) &&
        value == static_cast<double>(static_cast<std::int64_t>(value))) {
      return static_cast<std::int64_t>(value);
    }
    throw DataError(source_ + ": " + field + " is " + quote(json_.at(field).dump()));
  }

  const Json& json_;
  const std::string& source_;
};

double rope_theta_of(const Json& json, const std::string& source) {
  constexpr const char* kPlain =
      "only plain rotary positions have one; any network of Python's trains as TorchScript "
      "(docs/how-to/from-python.md)";
  constexpr double kDefault = 10000.0;
  const auto scaling = json.find("rope_scaling");
  if (scaling != json.end() && !scaling->is_null()) {
    const HubConfig fields(*scaling, source);
    fields.refuse_unless<std::string>("rope_type", "default", kPlain);
    fields.refuse_unless<std::string>("type", "default", kPlain);
  }
  double theta = HubConfig(json, source).find<double>("rope_theta").value_or(kDefault);
  const auto parameters = json.find("rope_parameters");
  if (parameters != json.end() && parameters->is_object()) {
    const HubConfig fields(*parameters, source);
    fields.refuse_unless<std::string>("rope_type", "default", kPlain);
    theta = fields.find<double>("rope_theta").value_or(theta);
  }
  return theta;
}

GptOptions read_llama(const Json& json, const std::string& source) {
  const HubConfig config(json, source);
  GptOptions model;
  model.layers = config.size("num_hidden_layers");
  model.dim = config.size("hidden_size");
  model.heads = config.size("num_attention_heads");
  model.kv_heads = config.size_or("num_key_value_heads", model.heads);
  model.head_dim = config.size_or("head_dim", std::max<std::int64_t>(1, model.dim / model.heads));
  model.ffn_dim = config.size("intermediate_size");
  model.vocab_size = config.size("vocab_size");
  model.seq_len = config.size("max_position_embeddings");
  constexpr double kDefaultEps = 1e-6;
  model.norm_eps = config.find<double>("rms_norm_eps").value_or(kDefaultEps);
  model.rope_theta = rope_theta_of(json, source);
  model.tied_embeddings = config.find<bool>("tie_word_embeddings").value_or(false);
  model.bias = config.find<bool>("attention_bias").value_or(false);
  config.refuse_unless("mlp_bias", model.bias,
                       "attention and feed-forward layers both have biases, or neither has");
  config.refuse_unless<std::string>("hidden_act", "silu", "its gated activation is swiglu");
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

bool has_hub_names(const GptOptions& options) {
  return options.norm == Norm::kRmsNorm && options.position == Position::kRope &&
         options.activation == ActivationFunction::kSwiGlu;
}

HubForm hub_form_of(const GptOptions& options) {
  constexpr int kIndent = 2;
  const auto tied_to = [&](const char* embedding) {
    std::vector<TiedTensor> tied;
    if (options.tied_embeddings) tied.push_back({kOutputWeight, embedding, "tied_embeddings"});
    return tied;
  };
  std::vector<std::string> ignored;
  if (options.tied_embeddings) ignored.emplace_back(kOutputWeight);
  if (options.norm == Norm::kRmsNorm) {
    check_llama(options);
    ignored.emplace_back(".rotary_emb.inv_freq");
    return {llama_config(options).dump(kIndent) + "\n", HubTensors(options).of_llama(), ignored,
            tied_to(kTokenEmbedding)};
  }
  check_gpt2(options);
  // The masks of attention, in files of early releases.
  ignored.insert(ignored.end(), {".attn.bias", ".attn.masked_bias"});
  return {gpt2_config(options).dump(kIndent) + "\n", HubTensors(options).of_gpt2(), ignored,
          tied_to("transformer.wte.weight")};
}

std::optional<GptOptions> read_hub_config(std::string_view json, const std::string& source) {
  const Json config = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) throw DataError(source + " is not JSON");
  const std::string type = HubConfig(config, source).need<std::string>("model_type");
  if (type == "llama") return read_llama(config, source);
  if (type == "gpt2") return read_gpt2(config, source);
  return std::nullopt;
}

}  // namespace troika
