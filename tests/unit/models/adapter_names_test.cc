// Layers of a GPT-2 by the names that Hugging Face's class has for them.
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/models/adapter_names.h>
#include <troika/models/gpt/options.h>

namespace troika {
namespace {

using Names = std::vector<std::string>;

ModelOptions gpt2() {
  GptOptions options;
  options.layers = 2;
  options.norm = Norm::kLayerNorm;
  options.position = Position::kLearned;
  options.activation = ActivationFunction::kGelu;
  options.bias = true;
  return {ModelOptions(gpt_kind(), options)};
}

Names matched(const Names& match, const ModelOptions& model) {
  return with_own_names({.match = match}, model).match;
}

TEST(AdapterNames, OfGpt2AreFound) {
  EXPECT_EQ(matched({"transformer.h.1.mlp.c_fc", "q_proj", "*"}, gpt2()),
            (Names{"model.layers.1.mlp.up_proj", "q_proj", "*"}));
  EXPECT_EQ(matched({"attn.c_proj"}, gpt2()),
            (Names{"model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj"}));
  EXPECT_EQ(matched({"c_proj"}, gpt2()).size(), 4);
  EXPECT_EQ(matched({"c_proj", "q_proj"}, ModelOptions::named("gpt")), (Names{"c_proj", "q_proj"}));
  EXPECT_EQ(matched({"c_proj"}, ModelOptions::named("mlp")), Names{"c_proj"});
}

TEST(AdapterNames, OfSeveralLayersAreRefused) {
  for (const char* name : {"c_attn", "transformer.h.0.attn.c_attn"}) {
    try {
      (void)matched({name}, gpt2());
      ADD_FAILURE();
    } catch (const UsageError& error) {
      EXPECT_EQ(error.what(),
                "[adapter] match: '" + std::string(name) +
                    "' is 3 layers here, model.layers.0.self_attn.q_proj to "
                    "model.layers.0.self_attn.v_proj: the one pair that peft has for them has no "
                    "counterpart");
    }
  }
}

}  // namespace
}  // namespace troika
