// What a recipe means when it is right.
#include <troika/base/error.h>
#include <troika/data/sources/documents.h>
#include <troika/models/gpt/options.h>
#include <troika/models/mlp/options.h>
#include <troika/recipe/recipe_file.h>
#include <troika/recipe/warnings.h>

#include <gmock/gmock.h>
#include <filesystem>
#include <fstream>

#include "recipe_text.h"

namespace troika::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(RecipeFile, ReadsWhatIsThereAndFillsInTheRest) {
  const LoadedRecipe loaded = read(kGptRecipe);
  const Recipe& recipe = loaded.recipe;
  EXPECT_EQ(recipe.name, "test");
  EXPECT_EQ(recipe.seed, 1337);
  const auto& model = recipe.model.as<GptOptions>();
  EXPECT_EQ(model.layers, 2);
  EXPECT_EQ(model.kv_heads, 4);   // heads
  EXPECT_EQ(model.head_dim, 16);  // dim / heads
  EXPECT_EQ(model.activation, ActivationFunction::kSwiGlu);
  EXPECT_EQ(recipe.data.name(), "text");
  EXPECT_THAT(recipe.data.as<DocumentOptions>().paths, ElementsAre("a/*.txt"));
  EXPECT_EQ(recipe.optimizer.kind.name(), "adamw");
  EXPECT_EQ(recipe.train.steps, 10);
  EXPECT_EQ(recipe.parallel.data, std::nullopt);
  EXPECT_THAT(loaded.warnings, IsEmpty());
}

TEST(RecipeFile, ReadsAnMlp) {
  const Recipe recipe = read(kMlpRecipe).recipe;
  const auto& model = recipe.model.as<MlpOptions>();
  EXPECT_EQ(recipe.model.name(), "mlp");
  EXPECT_THAT(model.hidden_dims, ElementsAre(16, 16));
  EXPECT_EQ(model.activation, ActivationFunction::kRelu);
  EXPECT_EQ(recipe.model.loss.name(), "cross_entropy");
  const Recipe linear = read(with(kMlpRecipe, "[16, 16]", "[]")).recipe;
  EXPECT_THAT(linear.model.as<MlpOptions>().hidden_dims, IsEmpty());
}

TEST(RecipeFile, EveryKindOfOptimizerHasItsOwnDefaults) {
  const auto kind_of = [](const std::string& name) {
    return read(kGptRecipe, {"optimizer.kind=" + name}).recipe.optimizer.kind;
  };
  for (const OptimizerKind* kind : OptimizerKind::all()) {
    EXPECT_EQ(kind_of(std::string(kind->name())), Chosen(*kind));
  }
  const Recipe recipe =
      read(kGptRecipe, {"optimizer.kind=lars", "optimizer.momentum=0.8", "optimizer.lr=2"}).recipe;
  EXPECT_EQ(recipe.optimizer.kind.as<MomentumOptions>().momentum, 0.8);
  EXPECT_EQ(recipe.optimizer.lr, 2);
}

TEST(RecipeFile, TakesAnIntegerForANumber) {
  const Recipe recipe = read(kGptRecipe + "grad_clip = 2\n[comm]\ntimeout_seconds = 0.5\n").recipe;
  EXPECT_EQ(recipe.train.grad_clip, 2.0);
  EXPECT_EQ(recipe.comm.timeout_seconds, 0.5);
}

TEST(RecipeFile, KeepsAGivenHeadDimAndKvHeads) {
  const Recipe recipe =
      read(with(kGptRecipe, "heads = 4\n", "heads = 6\nkv_heads = 2\nhead_dim = 10\n")).recipe;
  EXPECT_EQ(recipe.model.as<GptOptions>().kv_heads, 2);
  EXPECT_EQ(recipe.model.as<GptOptions>().head_dim, 10);
}

TEST(RecipeFile, TakesEverySettingOfAnAxisOfSizeOne) {
  const Recipe recipe =
      read(kGptRecipe +
           "[parallel]\npipeline_schedule = \"zb-v\"\nvirtual_stages = 2\ndata = 1\n"
           "zero_stage = 3\nshard = 1\n")
          .recipe;
  EXPECT_EQ(recipe.parallel.pipeline_schedule, "zb-v");
  EXPECT_EQ(recipe.parallel.virtual_stages, 2);
  EXPECT_EQ(recipe.parallel.zero_stage, 3);
}

TEST(RecipeFile, IgnoresProvenance) {
  const std::string text =
      kGptRecipe + "[provenance]\nmachine = 'x'\nlayers = 1979-05-27\n[provenance.more]\na.b = 1\n";
  EXPECT_EQ(read(text).recipe, read(kGptRecipe).recipe);
}

TEST(RecipeFile, OverridesTakeTheirTypeFromToml) {
  const Recipe recipe = read(kGptRecipe, {"model.layers=3", "model.norm=layernorm", "seed = 0x10",
                                          "train.grad_clip=1e-2", "model.tied_embeddings=false",
                                          "data.paths=[\"b\", 'c']", "parallel.data=auto",
                                          "model.position=\"learned\""})
                            .recipe;
  const auto& model = recipe.model.as<GptOptions>();
  EXPECT_EQ(model.layers, 3);
  EXPECT_EQ(model.norm, Norm::kLayerNorm);
  EXPECT_EQ(recipe.seed, 16);
  EXPECT_EQ(recipe.train.grad_clip, 0.01);
  EXPECT_FALSE(model.tied_embeddings);
  EXPECT_THAT(recipe.data.as<DocumentOptions>().paths, ElementsAre("b", "c"));
  EXPECT_EQ(model.position, Position::kLearned);
}

TEST(RecipeFile, TheLastOverrideWins) {
  EXPECT_EQ(read(kGptRecipe, {"train.steps=3", "train.steps=4"}).recipe.train.steps, 4);
}

TEST(RecipeFile, AnOverrideMayGiveARequiredKey) {
  EXPECT_EQ(read(with(kGptRecipe, "name = \"test\"", ""), {"name=other"}).recipe.name, "other");
  EXPECT_EQ(read(with(kGptRecipe, "layers = 2", ""), {"model.layers=2"}).recipe,
            read(kGptRecipe).recipe);
}

TEST(RecipeFile, AnOverrideMayReplaceWhatWouldBeRefused) {
  EXPECT_EQ(read(with(kGptRecipe, "layers = 2", "layers = 'x'"), {"model.layers=2"}).recipe,
            read(kGptRecipe).recipe);
  EXPECT_EQ(error_of(kGptRecipe + "[parallel]\ntensor = 2\n", {"parallel.tensor=1"}), "");
}

TEST(RecipeFile, AnOverrideOfTextIsTextWhateverTomlWouldReadThere) {
  for (const std::string name : {"2026-11-20", "true", "17", "1e5", "a # b", "x=y", "quo\"te"}) {
    EXPECT_EQ(read(kGptRecipe, {"name=" + name}).recipe.name, name);
  }
  EXPECT_EQ(read(kGptRecipe, {"name='17'"}).recipe.name, "17");
}

TEST(RecipeFile, AnOverrideCannotSmuggleInAnotherKey) {
  EXPECT_THAT(error_of(kGptRecipe, {"train.steps=1\nvalue2 = 5"}),
              HasSubstr("expected integer, found string"));
}

TEST(RecipeFile, WarnsOfWhatHasNoEffect) {
  EXPECT_THAT(read(kGptRecipe, {"debug.dump_steps=[1, 11]"}).warnings,
              ElementsAre("--set debug.dump_steps=[1, 11]: [debug] dump_steps reaches beyond "
                          "train.steps = 10"));
  EXPECT_THAT(read(kGptRecipe, {"observe.trace_steps=[9, 12]"}).warnings,
              ElementsAre(HasSubstr("[observe] trace_steps reaches beyond")));
  EXPECT_THAT(read(with(kGptRecipe, "[\"a/*.txt\"]", "[]")).warnings,
              ElementsAre(HasSubstr("recipe.toml:14: [data] paths is empty")));
  EXPECT_THAT(read(kGptRecipe, {"optimizer.momentum=0.9"}).warnings,
              ElementsAre(HasSubstr("momentum is not used by kind = \"adamw\"")));
  EXPECT_THAT(read(kGptRecipe, {"optimizer.lr=1e-5"}).warnings,
              ElementsAre(HasSubstr("min_lr = 1e-4 is above lr = 1e-5")));
  EXPECT_THAT(read(kGptRecipe, {"parallel.shard=2"}).warnings,
              ElementsAre(HasSubstr("[parallel] shard = 2 cuts nothing at zero_stage = 0")));
  EXPECT_THAT(read(kGptRecipe, {"parallel.shard=2", "parallel.zero_stage=1"}).warnings, IsEmpty());
  const std::string each = "parallel.cut_gradients=each_microbatch";
  EXPECT_THAT(read(kGptRecipe, {each, "parallel.zero_stage=1"}).warnings,
              ElementsAre(HasSubstr("[parallel] cut_gradients = \"each_microbatch\" cuts nothing: "
                                    "gradients are cut from zero_stage = 2 on")));
  EXPECT_THAT(read(kGptRecipe, {each, "parallel.zero_stage=3"}).warnings, IsEmpty());
}

// A recipe may keep the keys of kinds that it changes between.
TEST(RecipeFile, WarnsOfKeysOfOtherKindsOfDataAndOptimizers) {
  EXPECT_THAT(read(kMlpRecipe, {"data.pack=pad", "data.paths=[\"a\"]"}).warnings,
              ElementsAre("--set data.pack=pad: [data] pack is not used by kind = \"random\"",
                          "--set data.paths=[\"a\"]: [data] paths is not used by kind = "
                          "\"random\""));
  EXPECT_THAT(read(kMlpRecipe, {"data.pack=concatenate", "data.paths=[]"}).warnings, IsEmpty());
  EXPECT_THAT(read(kGptRecipe, {"optimizer.kind=sgd", "optimizer.eps=1e-6"}).warnings,
              ElementsAre(HasSubstr("eps is not used by kind = \"sgd\"")));
  EXPECT_THAT(read(kGptRecipe, {"optimizer.kind=lion", "optimizer.nesterov=true"}).warnings,
              ElementsAre(HasSubstr("nesterov is not used by kind = \"lion\"")));
}

TEST(RecipeFile, WarnsOfWhatHasLessEffectOnItsRanks) {
  const auto on_ranks = [](int ranks, std::vector<std::string> sets) {
    sets.insert(sets.end(), {"train.global_batch_size=8", "parallel.zero_stage=2"});
    const LoadedRecipe loaded = read(kGptRecipe, sets);
    EXPECT_THAT(loaded.warnings, IsEmpty());
    return warnings_of_layout(resolve_recipe(loaded.recipe, ranks), loaded.origins);
  };
  EXPECT_THAT(on_ranks(2, {"train.micro_batch_size=4"}), IsEmpty());
  EXPECT_THAT(on_ranks(2, {"train.micro_batch_size=3"}),
              ElementsAre("--set parallel.zero_stage=2: [parallel] zero_stage = 2 keeps whole "
                          "gradients, as stage 1 does, with several microbatches a step: "
                          "micro_batch_size = 4 makes them one, cut_gradients = "
                          "\"each_microbatch\" cuts them after each"));
  EXPECT_THAT(on_ranks(2, {"train.micro_batch_size=3", "parallel.cut_gradients=each_microbatch"}),
              IsEmpty());
  EXPECT_THAT(on_ranks(1, {"train.micro_batch_size=3"}),
              ElementsAre(HasSubstr("cuts nothing: the data axis has one rank")));
  const std::vector<std::string> zb = {"train.micro_batch_size=4", "parallel.pipeline=2",
                                       "parallel.pipeline_schedule=zb-h1"};
  EXPECT_THAT(on_ranks(4, zb), ElementsAre(HasSubstr("pipeline_schedule = \"zb-h1\" needs")));
  EXPECT_THAT(on_ranks(2, zb), ElementsAre(HasSubstr("cuts nothing: the data axis has one rank")));
}

TEST(RecipeFile, LoadsAFileAndNamesIt) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) /
      ("troika-recipe-" + std::to_string(::testing::UnitTest::GetInstance()->random_seed()) + "-" +
       std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const std::string file = (folder / "mine.toml").string();
  std::ofstream(file) << with(kGptRecipe, "layers = 2", "layer = 2");
  try {
    (void)load_recipe(file);
    FAIL() << "an unknown key was accepted";
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()),
              file + ":5: [model] unknown key 'layer'; did you mean 'layers'?");
  }
  std::ofstream(file) << kGptRecipe;
  EXPECT_EQ(load_recipe(file, std::vector<std::string>{"train.steps=7"}).recipe.train.steps, 7);
  std::filesystem::remove_all(folder);
}

TEST(RecipeFile, AMissingFileIsAUsageError) {
  try {
    (void)load_recipe("no/such/recipe.toml");
    FAIL() << "a missing file was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("no/such/recipe.toml"));
  }
}

}  // namespace
}  // namespace troika::testing
