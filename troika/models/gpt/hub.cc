#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/models/gpt/hub.h>
#include <troika/models/gpt/vocabulary.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
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

// A class of the libraries that a model leaves as.
struct Family {
  const char* name;          // in words
  const char* model_type;    // of config.json
  const char* architecture;  // there, too
  const char* because;       // the choice that makes a model one of these
};
constexpr Family kLlama = {"Llama", "llama", "LlamaForCausalLM", "norm = \"rmsnorm\""};
constexpr Family kQwen2 = {"Qwen2", "qwen2", "Qwen2ForCausalLM", "qkv_bias = true"};
constexpr Family kQwen3 = {"Qwen3", "qwen3", "Qwen3ForCausalLM", "qk_norm = true"};
constexpr Family kGpt2 = {"GPT-2", "gpt2", "GPT2LMHeadModel", "norm = \"layernorm\""};

const Family& family_of(const GptOptions& model) {
  if (model.norm == Norm::kLayerNorm) return kGpt2;
  if (model.qk_norm) return kQwen3;
  return model.qkv_bias && !model.bias ? kQwen2 : kLlama;
}

Demand absent(std::string_view key, bool is_present) {
  return {!is_present, choice(key, "true"), choice(key, "false")};
}

std::vector<Demand> demands_of_llama(const GptOptions& model) {
  return {Demand{model.position == Position::kRope, choice("position", quoted(model.position)),
                 choice("position", quoted(Position::kRope))},
          Demand{model.activation == ActivationFunction::kSwiGlu,
                 choice("activation", quoted(model.activation)),
                 choice("activation", quoted(ActivationFunction::kSwiGlu))},
          // Of Llama alone the libraries refuse such a config, also with a head_dim of its own.
          Demand{&family_of(model) != &kLlama || model.dim % model.heads == 0,
                 choice("dim", std::to_string(model.dim)), "dim as a multiple of heads"},
          absent("bias", model.qk_norm && model.bias),
          absent("qkv_bias", model.qk_norm && model.qkv_bias)};
}

std::vector<Demand> demands_of_gpt2(const GptOptions& model) {
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  return {Demand{model.position == Position::kLearned, choice("position", quoted(model.position)),
                 choice("position", quoted(Position::kLearned))},
          Demand{model.activation != ActivationFunction::kSwiGlu,
                 choice("activation", quoted(model.activation)),
                 choice("activation", quoted(ActivationFunction::kGeluTanh))},
          Demand{model.bias, "bias = false", "bias = true"},
          absent("qk_norm", model.qk_norm),
          Demand{model.kv_heads == model.heads, choice("kv_heads", number(model.kv_heads)),
                 choice("kv_heads", number(model.heads))},
          Demand{model.head_dim * model.heads == model.dim,
                 choice("head_dim", number(model.head_dim)), "head_dim = dim / heads"}};
}

// Returns the first choice of a model that its family does not have.
std::optional<Demand> unmet_demand(const GptOptions& model) {
  const std::vector<Demand> demands =
      &family_of(model) == &kGpt2 ? demands_of_gpt2(model) : demands_of_llama(model);
  const auto unmet = std::ranges::find(demands, false, &Demand::is_met);
  if (unmet == demands.end()) return std::nullopt;
  return *unmet;
}

void refuse_unmet(const GptOptions& model) {
  const auto unmet = unmet_demand(model);
  if (!unmet) return;
  const Family& family = family_of(model);
  throw UsageError("[model] " + unmet->choice + " has no counterpart in Hugging Face's " +
                       family.name + ", as which a model with " + family.because + " leaves",
                   "train with " + unmet->wanted +
                       "; what other programs read of any model is model.safetensors");
}

Json rope_parameters(const GptOptions& model) {
  const std::string type = model.rope_scaling == ops::RotaryScaling::kNone
                               ? "default"
                               : std::string(name_of(model.rope_scaling));
  Json rope = {{"rope_theta", model.rope_theta}, {"rope_type", type}};
  if (model.rope_scaling == ops::RotaryScaling::kNone) return rope;
  rope["factor"] = model.rope_factor;
  if (model.rope_scaling == ops::RotaryScaling::kLinear) return rope;
  rope["low_freq_factor"] = model.rope_low_freq_factor;
  rope["high_freq_factor"] = model.rope_high_freq_factor;
  rope["original_max_position_embeddings"] = model.rope_original_len;
  return rope;
}

Json llama_config(const GptOptions& model) {
  const Family& family = family_of(model);
  Json config = {{"architectures", {family.architecture}},
                 {"model_type", family.model_type},
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
                 {"rope_parameters", rope_parameters(model)}};
  if (model.rope_scaling != ops::RotaryScaling::kNone) {
    config["rope_scaling"] = rope_parameters(model);
  }
  if (&family != &kQwen2) config["attention_bias"] = model.bias;
  if (&family == &kLlama) {
    config["mlp_bias"] = model.bias;
  } else {
    config["use_sliding_window"] = false;
  }
  config["tie_word_embeddings"] = model.tied_embeddings;
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = nullptr;
  return config;
}

Json gpt2_config(const GptOptions& model) {
  const bool exact = model.activation == ActivationFunction::kGelu;
  return {{"architectures", {kGpt2.architecture}},
          {"model_type", kGpt2.model_type},
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
    for (std::int64_t layer = 0; layer < model_.layers; ++layer) add_llama_layer(layer);
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

  void add_llama_layer(std::int64_t layer) {
    const std::string in_layer = "model.layers." + std::to_string(layer) + ".";
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
      same(in_layer + norm + ".weight");
    }
    if (model_.qk_norm) {
      for (const char* norm : {"q_norm", "k_norm"})
        same(in_layer + "self_attn." + norm + ".weight");
    }
    for (const char* linear : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}) {
      same(in_layer + linear + ".weight");
      if (model_.bias || model_.qkv_bias) same(in_layer + linear + ".bias");
    }
    for (const char* linear :
         {"self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      same(in_layer + linear + ".weight");
      if (model_.bias) same(in_layer + linear + ".bias");
    }
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

}  // namespace

bool has_hub_names(const GptOptions& options) {
  return &family_of(options) != &kGpt2 && !unmet_demand(options);
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
  refuse_unmet(options);
  if (&family_of(options) != &kGpt2) {
    ignored.emplace_back(".rotary_emb.inv_freq");
    return {llama_config(options).dump(kIndent) + "\n", HubTensors(options).of_llama(), ignored,
            tied_to(kTokenEmbedding)};
  }
  // The masks of attention, in files of early releases.
  ignored.insert(ignored.end(), {".attn.bias", ".attn.masked_bias"});
  return {gpt2_config(options).dump(kIndent) + "\n", HubTensors(options).of_gpt2(), ignored,
          tied_to("transformer.wte.weight")};
}

}  // namespace troika
