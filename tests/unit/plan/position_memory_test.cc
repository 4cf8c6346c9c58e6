// Memory of constant tables: published models take sequences of 131,072 tokens, whose angles are
// large.
#include <gtest/gtest.h>
#include <troika/plan/memory_plan.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/run.h>

#include <string>
#include <vector>

namespace troika {
namespace {

constexpr const char* kRotaryRecipe = R"(
name = "planned"
[model]
kind = "gpt"
layers = 8
dim = 64
heads = 1
ffn_dim = 8
vocab_size = 16
seq_len = 4096
[data]
kind = "random"
[train]
global_batch_size = 1
micro_batch_size = 1
precision = "fp32"
)";

std::int64_t buffers_with(const std::string& layers) {
  const std::vector<std::string> overrides = {layers};
  const Recipe recipe = parse_recipe(kRotaryRecipe, "recipe.toml", overrides).recipe;
  return predict_memory(resolve_for_run(recipe, 1), 0).buffers;
}

TEST(PositionMemory, LayersShareTheTableOfAngles) {
  constexpr std::int64_t kTable = 2 * 4096 * 32 * 4;  // cosines and sines in fp32, a half head each
  EXPECT_EQ(buffers_with("model.layers=1"), kTable);
  EXPECT_EQ(buffers_with("model.layers=8"), kTable);
}

}  // namespace
}  // namespace troika
