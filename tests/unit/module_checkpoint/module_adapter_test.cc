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
  const std::string rest =
      R"(, "r": 4, "lora_alpha": 8, "lora_dropout": 0, "target_modules": ["q"]})";
  EXPECT_EQ(refused(R"({"peft_type": "LORA")" + rest), "");
  EXPECT_EQ(refused("[]"), " is not JSON");
  EXPECT_EQ(refused(R"({"peft_type": "IA3")" + rest), ": peft_type 'IA3' has no counterpart here");
  EXPECT_EQ(refused(R"({"peft_type": "LORA", "use_dora": true)" + rest),
            ": use_dora has no counterpart here");
  EXPECT_EQ(refused(R"({"peft_type": "LORA", "r": 0, "lora_alpha": 8})"),
            ": r is missing, or no number that an adapter can have");
  EXPECT_EQ(refused(R"({"peft_type": "LORA", "rank_pattern": {"q": 2})" + rest),
            ": rank_pattern has no counterpart here");
}

}  // namespace
}  // namespace troika
