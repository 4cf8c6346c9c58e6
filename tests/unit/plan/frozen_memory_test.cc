// What frozen parameters take in plans of memory: their values, and nothing for a backward pass.
#include <gtest/gtest.h>
#include <troika/plan/memory_plan.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/run.h>

#include <string>
#include <vector>

namespace troika {
namespace {

constexpr const char* kHeadRecipe = R"(
name = "planned"
[model]
kind = "gpt"
layers = 4
dim = 384
heads = 6
ffn_dim = 1024
vocab_size = 251
seq_len = 37
tied_embeddings = false
[data]
kind = "random"
[train]
global_batch_size = 4
micro_batch_size = 1
precision = "fp32"
)";

Recipe resolved_gpt(int ranks, const std::vector<std::string>& overrides) {
  return resolve_for_run(parse_recipe(kHeadRecipe, "recipe.toml", overrides).recipe, ranks);
}

std::string frozen(const std::string& pattern) {
  return "optimizer.groups=[{match=\"" + pattern + "\", frozen=true}]";
}

// A GPT of 7.3 million parameters, of which the head's 96 thousand are trained, on one sample of 37
// tokens.
TEST(FrozenMemory, AFrozenParameterCostsItsValueAlone) {
  const auto plan_with = [](std::vector<std::string> more) {
    more.emplace_back("train.global_batch_size=1");
    return predict_memory(resolved_gpt(1, more), 0);
  };
  const MemoryPlan all = plan_with({}), head = plan_with({frozen("model.*")});
  EXPECT_EQ(head.masters, all.masters);
  EXPECT_EQ(head.gradients, 251 * 384 * 4);
  EXPECT_EQ(head.optimizer, 2 * 251 * 384 * 4);
  EXPECT_LT(static_cast<double>(head.peak()), 0.45 * static_cast<double>(all.peak()));
  // Only the head's input and gradients are there between units.
  EXPECT_LT(static_cast<double>(head.activations), 0.1 * static_cast<double>(all.activations));

  const std::int64_t parameters = all.masters / 4, trained = 251 * 384;
  const MemoryPlan mixed = plan_with({frozen("model.*"), "train.precision=bf16"});
  EXPECT_EQ(mixed.masters, 4 * trained);
  EXPECT_EQ(mixed.gradients, 4 * trained);
  EXPECT_EQ(mixed.values, 2 * parameters + 2 * 9 * 384);  // norms stay in fp32
}

// Adapters of rank 8 beside each linear layer of 100 million frozen parameters.
TEST(FrozenMemory, AdaptersTakeLittleBesideTheBase) {
  const Recipe recipe =
      resolved_gpt(1, {"model.layers=12", "model.dim=768", "model.heads=12", "model.ffn_dim=2048",
                       "model.vocab_size=32000", "adapter.kind=lora", "adapter.rank=8",
                       "train.global_batch_size=1", "checkpoint.every_steps=1"});
  const MemoryPlan plan = predict_memory(recipe, 0);
  const std::int64_t values = plan.masters - plan.gradients;  // of the base
  EXPECT_GT(values, std::int64_t{4} * 100'000'000);
  EXPECT_LT(plan.gradients, values / 50);
  const std::int64_t step = plan.step() - plan.activations - plan.transient;
  for (const std::int64_t peak : {plan.start, step, plan.saving()}) {
    EXPECT_LE(static_cast<double>(peak), 1.15 * static_cast<double>(values));
  }
}

// A stage without anything trained in it or before it keeps nothing for a backward pass.
TEST(FrozenMemory, StagesBelowWhatIsTrainedKeepNoActivations) {
  const Recipe recipe = resolved_gpt(
      2, {"parallel.pipeline=2", frozen("model.embed*"), "parallel.pipeline_schedule=1f1b"});
  EXPECT_EQ(predict_memory(recipe, 0).peak_stage_activations, 2);
  const Recipe head = resolved_gpt(2, {"parallel.pipeline=2", frozen("model.*")});
  EXPECT_EQ(predict_memory(head, 0).peak_stage_activations, 0);
  EXPECT_EQ(predict_memory(head, 0).gradients, 0);
  EXPECT_EQ(predict_memory(head, 1).peak_stage_activations, 1);
}

}  // namespace
}  // namespace troika
