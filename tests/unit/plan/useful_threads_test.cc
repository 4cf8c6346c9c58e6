#include <gtest/gtest.h>
#include <troika/models/gpt/options.h>
#include <troika/models/mlp/options.h>
#include <troika/plan/useful_threads.h>

namespace troika {
namespace {

TEST(UsefulThreads, GrowWithTheModel) {
  Recipe recipe;
  auto& model = recipe.model.as<GptOptions>();
  model.dim = 16;
  model.ffn_dim = 32;
  model.seq_len = 16;
  recipe.train.micro_batch_size = 2;
  EXPECT_EQ(useful_threads(recipe, 64), 1);
  model.seq_len = 1024;
  model.dim = model.ffn_dim = 100;
  recipe.train.micro_batch_size = 1;
  EXPECT_EQ(useful_threads(recipe, 64), 2);
  recipe.parallel.tensor = 2;
  EXPECT_EQ(useful_threads(recipe, 64), 1);
  model.dim = model.ffn_dim = 4096;
  EXPECT_EQ(useful_threads(recipe, 64), 64);
  EXPECT_EQ(useful_threads(recipe, 0), 1);
}

TEST(UsefulThreads, OfAnMlpAreThoseOfItsLargestLayer) {
  Recipe recipe;
  recipe.model = ModelOptions(mlp_kind());
  auto& model = recipe.model.as<MlpOptions>();
  model.input_dim = 64;
  model.hidden_dims = {128, 128};
  recipe.train.micro_batch_size = 32;
  EXPECT_EQ(useful_threads(recipe, 8), 1);
  model.hidden_dims = {1024, 1024, 16};
  EXPECT_EQ(useful_threads(recipe, 8), 8);
}

}  // namespace
}  // namespace troika
