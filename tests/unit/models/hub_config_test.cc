// What a config.json of a published model says: which fields come in, which leave, and which are
// refused. The values are judged by the libraries themselves (tests/command/hub_models_test.py).
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/models/gpt/gpt.h>
#include <troika/models/gpt/hub.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

Json config(const std::string& type) {
  return {{"model_type", type},         {"vocab_size", 300},
          {"hidden_size", 24},          {"intermediate_size", 40},
          {"num_hidden_layers", 2},     {"num_attention_heads", 4},
          {"num_key_value_heads", 2},   {"max_position_embeddings", 32},
          {"tie_word_embeddings", true}};
}

GptOptions read(const Json& json) {
  return read_hub_config(json.dump(), "c.json").value();
}

void expect_refused(const Json& json, const std::string& message, const std::string& hint) {
  try {
    (void)read_hub_config(json.dump(), "c.json");
    ADD_FAILURE() << "read " << json.dump();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    EXPECT_NE(error.hint().find(hint), std::string::npos) << error.hint();
  }
}

std::vector<std::string> names_of_tensors(const HubForm& form) {
  std::vector<std::string> names;
  for (const JoinedTensor& tensor : form.tensors) names.push_back(tensor.name);
  return names;
}

bool has(const GptOptions& model, const std::string& tensor) {
  return std::ranges::count(names_of_tensors(hub_form_of(model)), "model.layers.1." + tensor) == 1;
}

TEST(HubConfig, FamiliesDifferInBiasesAndNorms) {
  const GptOptions llama = read(config("llama")), mistral = [] {
    Json json = config("mistral");
    json["sliding_window"] = nullptr;
    return read(json);
  }();
  EXPECT_EQ(llama, mistral);
  EXPECT_FALSE(has(llama, "self_attn.q_proj.bias"));
  const GptOptions qwen2 = read(config("qwen2"));
  EXPECT_TRUE(has(qwen2, "self_attn.q_proj.bias"));
  EXPECT_TRUE(has(qwen2, "self_attn.v_proj.bias"));
  EXPECT_FALSE(has(qwen2, "self_attn.o_proj.bias"));
  EXPECT_FALSE(has(qwen2, "self_attn.q_norm.weight"));
  const GptOptions qwen3 = read(config("qwen3"));
  EXPECT_TRUE(has(qwen3, "self_attn.q_norm.weight"));
  EXPECT_TRUE(has(qwen3, "self_attn.k_norm.weight"));
  EXPECT_FALSE(has(qwen3, "self_attn.q_proj.bias"));
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(qwen2.head_dim, 6);
}

// What a file leaves out, its class has.
TEST(HubConfig, KeyHeadsThatAreLeftOutAreThoseOfTheClass) {
  Json json = config("llama");
  json.erase("num_key_value_heads");
  EXPECT_EQ(read(json).kv_heads, 4);
  json = config("mistral");
  json["sliding_window"] = nullptr;
  json["num_key_value_heads"] = nullptr;
  EXPECT_EQ(read(json).kv_heads, 4);
  json.erase("num_key_value_heads");
  json["num_attention_heads"] = 16;
  json["head_dim"] = 2;
  EXPECT_EQ(read(json).kv_heads, 8);
}

// As many releases write them, whichever is read.
TEST(HubConfig, ScaledPositionsComeInAndLeave) {
  Json llama3 = {{"rope_type", "llama3"},
                 {"factor", 8.0},
                 {"low_freq_factor", 1.0},
                 {"high_freq_factor", 4.0},
                 {"original_max_position_embeddings", 16}};
  Json json = config("llama");
  json["rope_theta"] = 500.0;
  json["rope_scaling"] = llama3;
  const GptOptions model = read(json);
  EXPECT_EQ(model.rope_scaling, ops::RotaryScaling::kLlama3);
  EXPECT_EQ(model.rope_theta, 500);
  EXPECT_EQ(model.rope_factor, 8);
  EXPECT_EQ(model.rope_original_len, 16);
  json.erase("rope_scaling");
  json.erase("rope_theta");
  json["rope_parameters"] = llama3;
  json["rope_parameters"]["rope_theta"] = 500.0;
  EXPECT_EQ(read(json), model);
  EXPECT_EQ(read(Json::parse(hub_form_of(model).config)), model);
  // Left out, it is what the model was made for.
  json["rope_parameters"].erase("original_max_position_embeddings");
  EXPECT_EQ(read(json).rope_original_len, 32);

  json = config("qwen2");
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 2.5}};
  const GptOptions linear = read(json);
  EXPECT_EQ(linear.rope_scaling, ops::RotaryScaling::kLinear);
  EXPECT_EQ(linear.rope_factor, 2.5);
  EXPECT_EQ(read(Json::parse(hub_form_of(linear).config)), linear);
}

TEST(HubConfig, WhatAGptDoesNotDoIsRefusedByField) {
  struct Refusal {
    std::string type;
    Json change;
    std::string message, hint;
  };
  const std::string elsewhere = "kind = \"exported\" (docs/how-to/from-python.md)";
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  const std::vector<Refusal> refusals = {
      {"llama", {{"rope_scaling", yarn}}, "c.json: rope_scaling.rope_type = \"yarn\"", elsewhere},
      {"qwen2", {{"rope_parameters", yarn}}, "rope_parameters.rope_type = \"yarn\"", elsewhere},
      {"llama",
       {{"rope_scaling", {{"type", "dynamic"}}}},
       "rope_scaling.type = \"dynamic\"",
       elsewhere},
      {"qwen3", {{"rope_parameters", {{"full_attention", yarn}}}}, "rope_parameters = ", elsewhere},
      {"llama", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor = 0.5", elsewhere},
      {"llama",
       {{"rope_scaling", {{"rope_type", "linear"}}}},
       "rope_scaling.factor is missing",
       ""},
      {"llama",
       {{"rope_scaling", {{"type", "linear"}, {"factor", 0}}}},
       "rope_scaling.factor is '0'",
       ""},
      {"llama", {{"rope_scaling", "linear"}}, "rope_scaling = \"linear\"", ""},
      {"mistral",
       {{"sliding_window", 31}},
       "sliding_window = 31 has no counterpart in kind = \"gpt\", whose attention reads all of "
       "max_position_embeddings = 32",
       "with max_position_embeddings = 31 there it comes in"},
      {"qwen2",
       {{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 1}},
       "sliding_window = 8",
       elsewhere},
      {"qwen3",
       {{"layer_types", {"full_attention", "chunked_attention"}}},
       "layer_types = ",
       elsewhere},
      {"qwen3", {{"attention_bias", true}}, "attention_bias = true", elsewhere},
      {"llama", {{"attention_bias", true}}, "attention_bias = true", elsewhere},
      {"llama", {{"mlp_bias", true}}, "mlp_bias = true", elsewhere},
      {"qwen2",
       {{"architectures", {"Qwen2ForSequenceClassification"}}},
       "architectures = ",
       elsewhere},
      {"qwen2", {{"hidden_act", "gelu"}}, "hidden_act = \"gelu\"", elsewhere},
      {"llama", {{"quantization_config", {{"bits", 4}}}}, "quantization_config = ", "save them so"},
      {"llama", {{"num_key_value_heads", 3}}, "num_key_value_heads = 3 does not divide", ""},
      {"qwen3", {{"head_dim", 5}}, "head_dim = 5 is odd", ""},
      {"llama", {{"rms_norm_eps", -1}}, "rms_norm_eps is '-1'", ""}};
  for (const Refusal& each : refusals) {
    Json json = config(each.type);
    json.update(each.change);
    expect_refused(json, each.message, each.hint);
  }
}

TEST(HubConfig, AWindowAsLongAsTheSequencesIsNone) {
  Json mistral = config("mistral");
  mistral["sliding_window"] = 32;
  EXPECT_EQ(read(mistral), read(config("llama")));
  Json qwen = config("qwen2");
  qwen["sliding_window"] = 8;  // it does not use it
  EXPECT_EQ(read(qwen), read(config("qwen2")));
  qwen["use_sliding_window"] = true;
  qwen["max_window_layers"] = 2;  // and here no layer does
  EXPECT_EQ(read(qwen), read(config("qwen2")));
}

// The fields of config.json as published, and the numbers of parameters that their cards give.
struct Published {
  const char* name;
  const char* config;
  std::int64_t parameters;
};
constexpr Published kPublished[] = {
    {"Llama 2 7B",
     R"({"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
         "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama",
         "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
         "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
         "tie_word_embeddings": false, "torch_dtype": "float16", "vocab_size": 32000})",
     6'738'415'616},
    {"Llama 3.1 8B",
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu",
         "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072,
         "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
         "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
         "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 8192, "rope_type": "llama3"},
         "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size": 128256})",
     8'030'261'248},
    {"Llama 3.2 1B",
     R"({"head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
         "max_position_embeddings": 131072, "model_type": "llama", "num_attention_heads": 32,
         "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
         "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                          "original_max_position_embeddings": 8192, "rope_type": "llama3"},
         "rope_theta": 500000.0, "tie_word_embeddings": true, "vocab_size": 128256})",
     1'235'814'400},
    {"Mistral 7B 0.3",
     R"({"architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
         "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
         "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
         "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
         "tie_word_embeddings": false, "vocab_size": 32768})",
     7'248'023'552},
    {"Qwen2.5 7B",
     R"({"architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 3584,
         "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
         "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
         "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
         "sliding_window": 131072, "tie_word_embeddings": false, "use_mrope": false,
         "use_sliding_window": false, "vocab_size": 152064})",
     7'615'616'512},
    {"Qwen3 0.6B",
     R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128,
         "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
         "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
         "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
         "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
         "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false,
         "vocab_size": 151936})",
     596'049'920}};

TEST(HubConfig, PublishedModelsHaveTheirNumbersOfParameters) {
  for (const Published& each : kPublished) {
    const auto options = read_hub_config(each.config, "c.json");
    ASSERT_TRUE(options) << each.name;
    std::int64_t parameters = 0;
    std::vector<std::string> names;
    for (const auto& unit : build_gpt(*options, 0).units) {
      for (const ParameterSpec& spec : unit->specs()) {
        if (!spec.tied_to.empty()) continue;
        parameters += spec.global_count();
        names.push_back(spec.name);
      }
    }
    EXPECT_EQ(parameters, each.parameters) << each.name;
    EXPECT_THAT(names_of_tensors(hub_form_of(*options)), testing::UnorderedElementsAreArray(names));
  }
}

TEST(HubConfig, OtherModelsAreOfOtherKinds) {
  EXPECT_FALSE(read_hub_config(config("phi3").dump(), "c.json"));
}

// A run writes config.json beside its model only where a folder of that form has these tensors.
TEST(HubForm, ChoicesWithoutACounterpartAreRefused) {
  GptOptions model = read(config("qwen3"));
  EXPECT_TRUE(has_hub_names(model));
  for (bool GptOptions::*const member : {&GptOptions::bias, &GptOptions::qkv_bias}) {
    GptOptions other = model;
    other.*member = true;
    EXPECT_FALSE(has_hub_names(other));
    EXPECT_THROW((void)hub_form_of(other), UsageError);
  }
  GptOptions gpt2;
  gpt2.norm = Norm::kLayerNorm;
  gpt2.position = Position::kLearned;
  gpt2.activation = ActivationFunction::kGelu;
  gpt2.bias = gpt2.qkv_bias = true;
  EXPECT_NO_THROW((void)hub_form_of(gpt2));
  gpt2.qk_norm = true;
  try {
    (void)hub_form_of(gpt2);
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "[model] qk_norm = true has no counterpart in Hugging Face's GPT-2, as which a "
                 "model with norm = \"layernorm\" leaves");
  }
}

// The libraries refuse its config, whatever head_dim is.
TEST(HubForm, AWidthThatIsNoMultipleOfHeadsIsNoLlama) {
  GptOptions model;
  model.dim = 20;
  model.heads = model.kv_heads = 3;
  model.head_dim = 8;
  try {
    (void)hub_form_of(model);
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "[model] dim = 20 has no counterpart in Hugging Face's Llama, as which a model "
                 "with norm = \"rmsnorm\" leaves");
  }
  EXPECT_FALSE(has_hub_names(model));
  model.qk_norm = true;
  EXPECT_NO_THROW((void)hub_form_of(model));
  model.qk_norm = false;
  model.dim = 21;
  EXPECT_NO_THROW((void)hub_form_of(model));
}

}  // namespace
}  // namespace troika
