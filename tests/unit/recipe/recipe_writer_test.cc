// A recipe that is written reads back as the same bits, whatever it holds.
#include <troika/config/toml_text.h>
#include <troika/models/gpt/options.h>
#include <troika/models/mlp/options.h>
#include <troika/recipe/recipe_file.h>
#include <troika/recipe/validate.h>

#include <gmock/gmock.h>
#include <bit>
#include <cstdlib>
#include <random>

#include "recipe_text.h"

namespace troika::testing {
namespace {

using ::testing::HasSubstr;

TEST(TomlNumber, IsShortAndReadsBack) {
  EXPECT_EQ(toml_number(0.0), "0.0");
  EXPECT_EQ(toml_number(-0.0), "-0.0");
  EXPECT_EQ(toml_number(1e-3), "1e-3");
  EXPECT_EQ(toml_number(0.1), "0.1");
  EXPECT_EQ(toml_number(10000), "10000.0");
  EXPECT_EQ(toml_number(1e300), "1e+300");
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const double value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    const std::string text = toml_number(value);
    const double back = std::strtod(text.c_str(), nullptr);
    ASSERT_EQ(std::bit_cast<std::uint64_t>(back), std::bit_cast<std::uint64_t>(value)) << text;
    ASSERT_NE(text.find_first_of(".e"), std::string::npos) << text;
  }
}

TEST(TomlString, EscapesWhatTomlForbids) {
  EXPECT_EQ(toml_string("a\"b\\c\n\x7f"), "\"a\\\"b\\\\c\\u000A\\u007F\"");
  EXPECT_EQ(toml_string("h\xc3\xa9"), "\"h\xc3\xa9\"");
}

// Draws a legal value for every key; what keys demand of one another is mended afterwards.
class RandomRecipe {
 public:
  explicit RandomRecipe(std::uint64_t seed) : random_(seed) {}

  Recipe draw(const ModelKind& kind) {
    Recipe recipe;
    recipe.model = ModelOptions(kind);
    if (&kind == &mlp_kind()) recipe.data = DataOptions::named("random");
    recipe.optimizer.kind = Chosen(*OptimizerKind::all()[random_() % OptimizerKind::all().size()]);
    recipe.compress = Chosen(*CompressKind::all()[random_() % CompressKind::all().size()]);
    for (const SchemaKey& key : recipe_schema().keys_of(&recipe)) {
      void* options = options_at(key, static_cast<void*>(&recipe));
      std::visit([&](const auto& spec) { fill(options, spec); }, key.key->spec);
    }
    mend(recipe);
    return recipe;
  }

 private:
  std::int64_t integer(const IntegerRange& range) {
    return std::uniform_int_distribution<std::int64_t>(
        range.min, std::min(range.max, std::int64_t{1} << 40))(random_);
  }
  double number(const NumberRange& range) {
    const double high = std::min(range.max, 1e6);
    double value = range.min;
    while (!range.contains(value) || value == range.min) {
      value = std::uniform_real_distribution<double>(range.min, high)(random_);
    }
    return value;
  }
  std::string text() {
    static const std::vector<std::string> kPieces = {
        "a", "Z", "0", " ", "'", "\"", "#", "=", "]", "\xc3\xa9", "\xe2\x82\xac", "-", "."};
    std::string result = "n";
    for (std::int64_t i = integer({0, 12}); i > 0; --i) {
      result += kPieces[random_() % kPieces.size()];
    }
    return result;
  }

  void fill(void* options, const IntegerSpec& spec) { spec.at.edit(options) = integer(spec.range); }
  void fill(void* options, const AutoIntegerSpec& spec) {
    if (random_() % 2 == 0) spec.at.edit(options) = integer(spec.range);
  }
  void fill(void* options, const AutoNumberSpec& spec) {
    if (random_() % 2 == 0) spec.at.edit(options) = number(spec.range);
  }
  void fill(void* options, const TablesSpec& spec) {
    for (std::uint64_t i = random_() % 3; i > 0; --i) {
      void* const table = spec.append(options);
      if (spec.named()) spec.name_of(table) = "table " + std::to_string(i);
      for (const Key& key : spec.keys()) {
        std::visit([&](const auto& own) { fill(table, own); }, key.spec);
      }
    }
  }
  void fill(void* options, const NumberSpec& spec) { spec.at.edit(options) = number(spec.range); }
  void fill(void* options, const SecondsSpec& spec) { spec.at.edit(options) = number(spec.range); }
  void fill(void* options, const BoolSpec& spec) { spec.at.edit(options) = random_() % 2 == 0; }
  void fill(void* options, const TextSpec& spec) { spec.at.edit(options) = text(); }
  void fill(void* options, const ChoiceSpec& spec) {
    int value = 0;
    do {
      value = static_cast<int>(random_() % spec.names.size());
    } while ((spec.allowed >> value & 1U) == 0);
    spec.write(options, value);
  }
  void fill(void* options, const WordSpec& spec) {
    const std::vector<std::string_view> names = spec.names();
    spec.at.edit(options) = names[random_() % names.size()];
  }
  void fill(void*, const KindSpec&) {}
  void fill(void*, const OptionsSpec&) {}
  void fill(void* options, const IntegerListSpec& spec) {
    for (int i = 0; i < 3; ++i) spec.at.edit(options).push_back(integer(spec.range));
  }
  void fill(void* options, const NumberListSpec& spec) {
    for (int i = 0; i < 3; ++i) spec.at.edit(options).push_back(number(spec.range));
  }
  void fill(void* options, const NumberPairSpec& spec) {
    spec.at.edit(options) = {number(spec.range), number(spec.range)};
  }
  void fill(void* options, const ConditionListSpec& spec) {
    spec.at.edit(options) = {{text(), ">", {random_() % 2 == 0}, false},
                             {text(), "in", {std::int64_t{1}, 0.5, text()}, true}};
  }
  void fill(void* options, const TextListSpec& spec) {
    for (int i = 0; i < 3; ++i) spec.at.edit(options).push_back(text() + "\n\t\\/**");
  }

  static void mend(GptOptions& model) {
    model.kv_heads = model.heads;
    model.head_dim += model.head_dim % 2;
    if (model.head_dim > 10'000'000) model.head_dim -= 2;
    model.vocab_size += 256;
    if (model.vocab_size > 10'000'000) model.vocab_size -= 512;
    if (model.position != Position::kRope) model.rope_scaling = ops::RotaryScaling::kNone;
    model.rope_high_freq_factor += model.rope_low_freq_factor;
  }

  static void mend(Recipe& recipe) {
    if (recipe.model.holds<GptOptions>()) {
      mend(recipe.model.as<GptOptions>());
    } else if (recipe.parallel.activation_checkpoint == ActivationCheckpoint::kSelective) {
      recipe.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
    }
    if (recipe.optimizer.kind.holds<MomentumOptions>()) {
      recipe.optimizer.kind.as<MomentumOptions>().momentum = 0.9;
    }
    if (&recipe.compress.kind() != &no_compress_kind()) {
      recipe.parallel.zero_stage = 0;
      recipe.train.precision = Precision::kFloat32;
    }
    if (recipe.optimizer.kind.kind().uses_layer_norms() &&
        !recipe.compress.kind().keeps_norms(recipe.compress.options())) {
      recipe.compress = {};
    }
    // Weights have to fit the model, and metrics and devices to be known.
    recipe.model.loss = LossOptions();
    recipe.train.metrics = {"perplexity"};
    recipe.train.best_metric = "none";
    recipe.checkpoint.mirror = "s3://bucket/" + recipe.checkpoint.mirror;
    recipe.checkpoint.key = "file:/" + recipe.checkpoint.key;
    recipe.train.device = "cuda:1";
    recipe.train.early_stop_patience = 0;
    recipe.train.steps %= 1000;
    recipe.train.steps += 1;
    recipe.train.global_batch_size = recipe.parallel.data.value_or(1) + 5;
    recipe.observe.trace_steps = {3, 4};
    // What does not exist yet is refused whatever it is.
    recipe.parallel.context = 1;
    if (recipe.train.deterministic) recipe.train.cudnn_benchmark = false;
    // What the model cannot be split into is refused as well.
    recipe.parallel.tensor = recipe.parallel.pipeline = 1;
    recipe.parallel.shard = 0;
    recipe.parallel.stage_units = {1, traits_of(recipe.model).units - 1};
    recipe.comm.engine = "gloo";
  }

  std::mt19937_64 random_;
};

TEST(RecipeWriter, RoundTripsAnyRecipe) {
  RandomRecipe random(7);
  for (int i = 0; i < 200; ++i) {
    const Recipe recipe = random.draw(i % 2 == 0 ? gpt_kind() : mlp_kind());
    const std::string text = to_toml(recipe, {{"machine", "a \"b\""}, {"lib torch", "2"}});
    const Recipe back = read(text).recipe;
    ASSERT_EQ(back, recipe) << text;
    ASSERT_EQ(to_toml(back), to_toml(recipe));
  }
}

TEST(RecipeWriter, KeepsAutoAndAResolvedDataAxis) {
  Recipe recipe = read(kGptRecipe).recipe;
  EXPECT_THAT(to_toml(recipe), HasSubstr("\n[parallel]\ndata = \"auto\"\n"));
  recipe.parallel.data = 3;
  EXPECT_THAT(to_toml(recipe), HasSubstr("\n[parallel]\ndata = 3\n"));
  EXPECT_EQ(read(to_toml(recipe)).recipe, recipe);
}

TEST(RecipeWriter, WritesOnlyTheKeysOfTheKind) {
  EXPECT_EQ(to_toml(read(kMlpRecipe).recipe).find("layers"), std::string::npos);
  EXPECT_EQ(to_toml(read(kGptRecipe).recipe).find("input_dim"), std::string::npos);
}

TEST(RecipeWriter, WritesProvenance) {
  const std::string text = to_toml(read(kGptRecipe).recipe, {{"troika", "0.1.0"}});
  EXPECT_THAT(text, HasSubstr("\n[provenance]\n\"troika\" = \"0.1.0\"\n"));
}

TEST(DefaultRecipe, ReadsAsTheDefaults) {
  Recipe expected;
  expected.name = "quickstart";
  EXPECT_EQ(read(default_recipe_toml()).recipe, expected);
}

TEST(DefaultRecipe, HasACommentOnEveryKey) {
  const std::string text = default_recipe_toml();
  const Recipe recipe;
  for (const SchemaKey& key : recipe_schema().keys_of(&recipe)) {
    const std::size_t at = text.find("\n" + std::string(key.key->name) + " = ");
    ASSERT_NE(at, std::string::npos) << key.full_name();
    const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    EXPECT_THAT(line, HasSubstr(" # "));
  }
}

TEST(Choices, HaveAWordForEveryEnumerator) {
  EXPECT_EQ(name_of(Precision::kFloat16), "fp16");
  EXPECT_EQ(name_of(ActivationFunction::kTanh), "tanh");
  EXPECT_EQ(names_of<ActivationFunction>().size(), 5U);
}

TEST(Validate, ChecksARecipeThatWasNeverInAFile) {
  Recipe recipe = read(kGptRecipe).recipe;
  recipe.model.as<GptOptions>().layers = 0;
  try {
    validate(recipe);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "recipe: [model] layers: 0 is out of range: 1 to 10000000");
  }
  recipe = read(kGptRecipe).recipe;
  recipe.parallel.pipeline_schedule = "zbv";
  EXPECT_THROW(validate(recipe), UsageError);
  recipe = read(kMlpRecipe).recipe;
  recipe.model.as<MlpOptions>().activation = ActivationFunction::kSwiGlu;
  EXPECT_THROW(validate(recipe), UsageError);
}

}  // namespace
}  // namespace troika::testing
