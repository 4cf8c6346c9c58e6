// A recipe that is written reads back as the same bits, whatever it holds.
#include <troika/config/choices.h>
#include <troika/config/fields.h>
#include <troika/config/recipe_file.h>
#include <troika/config/toml_text.h>
#include <troika/config/validate.h>

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

// Draws a legal value for every field; what keys demand of one another is mended afterwards.
class RandomRecipe {
 public:
  explicit RandomRecipe(std::uint64_t seed) : random_(seed) {}

  Recipe draw(ModelKind kind) {
    Recipe recipe = default_recipe(kind);
    for (const Field& field : fields()) {
      if (!field.applies_to(kind) || field.full_key() == "model.kind") continue;
      std::visit([&](const auto& spec) { fill(recipe, spec); }, field.spec);
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

  void fill(Recipe& recipe, const IntegerSpec& spec) { spec.at.edit(recipe) = integer(spec.range); }
  void fill(Recipe& recipe, const AutoIntegerSpec& spec) {
    if (random_() % 2 == 0) spec.at.edit(recipe) = integer(spec.range);
  }
  void fill(Recipe& recipe, const NumberSpec& spec) { spec.at.edit(recipe) = number(spec.range); }
  void fill(Recipe& recipe, const SecondsSpec& spec) { spec.at.edit(recipe) = number(spec.range); }
  void fill(Recipe& recipe, const BoolSpec& spec) { spec.at.edit(recipe) = random_() % 2 == 0; }
  void fill(Recipe& recipe, const TextSpec& spec) { spec.at.edit(recipe) = text(); }
  void fill(Recipe& recipe, const ChoiceSpec& spec) {
    int value = 0;
    do {
      value = static_cast<int>(random_() % spec.names.size());
    } while ((spec.allowed >> value & 1U) == 0);
    spec.write(recipe, value);
  }
  void fill(Recipe& recipe, const IntegerListSpec& spec) {
    for (int i = 0; i < 3; ++i) spec.at.edit(recipe).push_back(integer(spec.range));
  }
  void fill(Recipe& recipe, const NumberListSpec& spec) {
    for (int i = 0; i < 3; ++i) spec.at.edit(recipe).push_back(number(spec.range));
  }
  void fill(Recipe& recipe, const NumberPairSpec& spec) {
    spec.at.edit(recipe) = {number(spec.range), number(spec.range)};
  }
  void fill(Recipe& recipe, const TextListSpec& spec) {
    for (int i = 0; i < 3; ++i) spec.at.edit(recipe).push_back(text() + "\n\t\\/**");
  }

  void mend(Recipe& recipe) {
    ModelRecipe& model = recipe.model;
    if (model.kind == ModelKind::kGpt) {
      model.kv_heads = model.heads;
      model.head_dim += model.head_dim % 2;
      if (model.head_dim > 10'000'000) model.head_dim -= 2;
      model.vocab_size += 256;
      if (model.vocab_size > 10'000'000) model.vocab_size -= 512;
    } else {
      recipe.data.kind = DataKind::kRandom;
      if (recipe.parallel.activation_checkpoint == ActivationCheckpoint::kSelective) {
        recipe.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
      }
    }
    if (recipe.data.kind == DataKind::kRandom) recipe.data.pack = Pack::kConcatenate;
    recipe.train.steps %= 1000;
    recipe.train.steps += 1;
    recipe.train.global_batch_size = recipe.parallel.data.value_or(1) + 5;
    recipe.observe.trace_steps = {3, 4};
    // What does not exist yet is refused whatever it is.
    recipe.parallel.context = 1;
    // What the model cannot be split into is refused as well.
    recipe.parallel.tensor = recipe.parallel.pipeline = 1;
    recipe.parallel.shard = 0;
    const bool is_gpt = model.kind == ModelKind::kGpt;
    const auto hidden = static_cast<std::int64_t>(model.hidden_dims.size());
    recipe.parallel.stage_units = {is_gpt ? 2 : 1, is_gpt ? model.layers : hidden};
    recipe.comm.engine = EngineKind::kGloo;
  }

  std::mt19937_64 random_;
};

TEST(RecipeWriter, RoundTripsAnyRecipe) {
  RandomRecipe random(7);
  for (int i = 0; i < 200; ++i) {
    const Recipe recipe = random.draw(i % 2 == 0 ? ModelKind::kGpt : ModelKind::kMlp);
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
  Recipe expected = default_recipe(ModelKind::kGpt);
  expected.name = "quickstart";
  EXPECT_EQ(read(default_recipe_toml()).recipe, expected);
}

TEST(DefaultRecipe, HasACommentOnEveryKey) {
  const std::string text = default_recipe_toml();
  for (const Field& field : fields()) {
    if (!field.applies_to(ModelKind::kGpt)) continue;
    const std::size_t at = text.find("\n" + std::string(field.key) + " = ");
    ASSERT_NE(at, std::string::npos) << field.full_key();
    const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    EXPECT_THAT(line, HasSubstr(" # "));
  }
}

TEST(Choices, HaveAWordForEveryEnumerator) {
  EXPECT_EQ(name_of(Precision::kFloat16), "fp16");
  EXPECT_EQ(name_of(PipelineScheduleKind::kZbV), "zb-v");
  EXPECT_EQ(name_of(EngineKind::kFake), "fake");
  EXPECT_EQ(name_of(ActivationFunction::kTanh), "tanh");
  EXPECT_EQ(name_of(ScheduleKind::kWsd), "wsd");
  EXPECT_EQ(names_of<ActivationFunction>().size(), 5U);
}

TEST(Validate, ChecksARecipeThatWasNeverInAFile) {
  Recipe recipe = read(kGptRecipe).recipe;
  recipe.model.layers = 0;
  try {
    validate(recipe);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "recipe: [model] layers: 0 is out of range: 1 to 10000000");
  }
  recipe = read(kMlpRecipe).recipe;
  recipe.model.activation = ActivationFunction::kSwiGlu;
  EXPECT_THROW(validate(recipe), UsageError);
}

}  // namespace
}  // namespace troika::testing
