// Adapters of own modules leave as peft has them, and come in again.
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/checkpoint/module_adapter.h>
#include <troika/checkpoint/tensors.h>

#include <torch/torch.h>

#include "support/temporary_folder.h"

namespace troika {
namespace {

torch::nn::Sequential network() {
  return torch::nn::Sequential(torch::nn::Linear(5, 4), torch::nn::Tanh(), torch::nn::Linear(4, 3));
}

std::string refusal(const std::filesystem::path& folder, const ModuleLora& lora) {
  try {
    load_adapter(folder, lora);
    return "";
  } catch (const DataError& error) {
    return error.what();
  }
}

TEST(ModuleAdapter, LeavesAndComesInAgain) {
  const TemporaryFolder folder;
  auto first = network(), second = network(), third = network(), fourth = network();
  const ModuleLora lora(*first, {.rank = 2, .alpha = 6, .match = {"2"}}, 1);
  {
    const at::NoGradGuard no_grad;
    at::Tensor b = lora.parameters()[1];
    b.normal_();
  }
  save_adapter(lora, folder / "adapter");
  const auto names = load_tensors(folder / "adapter" / "adapter_model.safetensors");
  EXPECT_EQ(names[0].name, "base_model.model.2.lora_A.weight");
  const LoraOptions options = read_peft_config((folder / "adapter").string());
  EXPECT_EQ(options.match, std::vector<std::string>{"2"});
  const ModuleLora read(*second, options, 9);
  EXPECT_EQ(read.options().scale(), 3);
  EXPECT_EQ(refusal(folder / "adapter", read), "");
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(read.parameters()[i].equal(lora.parameters()[i]));
  }
  const ModuleLora wider(*third, {.rank = 3, .match = {"2"}});
  EXPECT_NE(refusal(folder / "adapter", wider)
                .find("'base_model.model.2.lora_A.weight' has another shape"),
            std::string::npos);
  const ModuleLora other(*fourth, {.rank = 2, .match = {"0"}});
  EXPECT_NE(refusal(folder / "adapter", other).find("base_model.model.0.lora_A.weight"),
            std::string::npos);
}

TEST(ModuleAdapter, RefusesWhatHasNoCounterpart) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& config) -> std::string {
    write_file_atomically(folder / "adapter_config.json", config);
    try {
      (void)read_peft_config(folder.path().string());
      return "";
    } catch (const DataError& error) {
      const std::string text = error.what();
      const std::string_view name = "adapter_config.json'";
      return text.substr(text.find(name) + name.size());
    }
  };
  const std::string rest = R"("r": 4, "lora_alpha": 8, "target_modules": ["q"]})";
  const auto with = [&](const std::string& key) {
    return refused(R"({"peft_type": "LORA", )" + key + ", " + rest);
  };
  const auto instead = [&](const std::string& keys) {
    return refused(R"({"peft_type": "LORA", )" + keys + "}");
  };
  EXPECT_EQ(refused("[]"), " is not JSON");
  EXPECT_EQ(refused(R"({"peft_type": "IA3", )" + rest),
            ": peft_type 'IA3' has no counterpart here");
  for (const char* idle :
       {R"("use_dora": false)", R"("lora_dropout": 0.5)", R"("init_lora_weights": "gaussian")",
        R"("init_lora_weights": false)", R"("fan_in_fan_out": true)", R"("rank_pattern": {})",
        R"("layers_to_transform": null)", R"("a_key_to_come": [])", R"("bias": "none")",
        R"("eva_config": {"rho": 2.0})", R"("auto_mapping": {"base_model_class": "Net"})"}) {
    EXPECT_EQ(with(idle), "") << idle;
  }
  // Without its tensors nothing says which layers were chosen.
  for (const char* key : {"use_dora", "use_qalora", "modules_to_save", "trainable_token_indices",
                          "alora_invocation_tokens", "rank_pattern", "exclude_modules",
                          "layers_to_transform", "a_key_to_come"}) {
    EXPECT_EQ(with("\"" + std::string(key) + "\": [1]"),
              ": " + std::string(key) + " has no counterpart here");
  }
  EXPECT_EQ(with(R"("init_lora_weights": "pissa")"),
            ": init_lora_weights = \"pissa\" has no counterpart here");
  EXPECT_EQ(with(R"("init_lora_weights": "pissa_niter_4")"),
            ": init_lora_weights = \"pissa_niter_4\" has no counterpart here");
  EXPECT_EQ(with(R"("bias": "lora_only")"), ": bias has no counterpart here");
  EXPECT_EQ(with(R"("use_rslora": 1)"), ": use_rslora is neither true nor false");
  const std::string no_number = " is missing, or no number that an adapter can have";
  for (const char* rank : {"0", "2.5", "true", "\"4\"", "70000"}) {
    EXPECT_EQ(instead(R"("target_modules": ["q"], "lora_alpha": 8, "r": )" + std::string(rank)),
              ": r" + no_number);
  }
  EXPECT_EQ(instead(R"("target_modules": ["q"], "r": 4, "lora_alpha": 0)"),
            ": lora_alpha" + no_number);
  EXPECT_EQ(with(R"("lora_dropout": 1.0)"), ": lora_dropout" + no_number);
  for (const char* name : {"7", "\"\"", "\"q*\"", "\"a b\""}) {
    EXPECT_EQ(
        instead(R"("r": 4, "lora_alpha": 8, "target_modules": ["q", )" + std::string(name) + "]"),
        ": target_modules has " + std::string(name) + ", which is no name of a layer");
  }
  EXPECT_EQ(instead(R"("r": 4, "lora_alpha": 8, "target_modules": ".*q")"),
            ": target_modules is no list of names of layers");
}

// What chose the layers in Python matters no more: the file has them.
TEST(ModuleAdapter, TakesTheLayersOfItsTensors) {
  const TemporaryFolder folder;
  const std::vector<NamedTensor> pair = {
      {"base_model.model.h.1.c_fc.lora_A.weight", at::ones({4, 2})},
      {"base_model.model.h.1.c_fc.lora_B.weight", at::ones({3, 4})}};
  save_tensors(folder / "adapter_model.safetensors", pair, {});
  for (const char* chosen : {R"("target_modules": ".*c_fc", "layers_to_transform": [1])",
                             R"("target_modules": ["c_fc"], "exclude_modules": "h.0.*")"}) {
    write_file_atomically(
        folder / "adapter_config.json",
        R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8, )" + std::string(chosen) + "}");
    EXPECT_EQ(read_peft_config(folder.path().string()).match, std::vector<std::string>{"h.1.c_fc"});
  }
}

// The last part of a name may be that of other modules, which peft would take for layers.
TEST(ModuleAdapter, NamesLayersWhole) {
  const auto targets = [](const PeftAdapter& adapter) {
    const std::string text = peft_config(adapter);
    const std::size_t begin = text.find("\"target_modules\": ") + 18;
    std::string found = text.substr(begin, text.find("\"bias\"") - begin);
    std::erase_if(found, [](char each) { return each == ' ' || each == '\n'; });
    return found;
  };
  const std::vector<std::string> layers = {"blocks.0.0", "blocks.0.2", "proj"};
  EXPECT_EQ(targets({{}, layers, {"blocks.0.0", "blocks.0.2"}, "", false}),
            R"x(["blocks.0.0","blocks.0.2"],)x");
  EXPECT_EQ(targets({{}, layers, {"blocks.0.2", "proj"}, "", false}),
            R"x("(blocks\\.0\\.2|proj)",)x");
  EXPECT_EQ(targets({{}, {"a.b", "c.a.b"}, {"a.b"}, "", false}), R"x("(a\\.b)",)x");
  const std::vector<std::string> heads = {"h.0.q_proj", "h.1.q_proj", "h.0.o_proj", "h.1.o_proj"};
  EXPECT_EQ(targets({{}, heads, {"h.0.q_proj", "h.1.q_proj", "h.1.o_proj"}, "CAUSAL_LM", false}),
            R"x(["h.1.o_proj","q_proj"],)x");
}

}  // namespace
}  // namespace troika
