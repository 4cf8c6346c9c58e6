#include <troika/config/layout.h>

#include <gmock/gmock.h>

#include "recipe_text.h"

namespace troika::testing {
namespace {

using ::testing::HasSubstr;

template <class Function>
std::pair<std::string, std::string> message_and_hint(Function function) {
  try {
    function();
  } catch (const UsageError& error) {
    return {error.what(), error.hint()};
  }
  return {};
}

// Axes other than data are refused when a recipe is read, so these are set afterwards.
Recipe with_axes(std::optional<std::int64_t> data, std::int64_t tensor, std::int64_t pipeline) {
  Recipe recipe = read(kGptRecipe).recipe;
  recipe.parallel.data = data;
  recipe.parallel.tensor = tensor;
  recipe.parallel.pipeline = pipeline;
  return recipe;
}

TEST(Layout, AutoTakesWhatTheOtherAxesLeave) {
  EXPECT_EQ(resolve_data_axis(with_axes({}, 1, 1), 5), 5);
  EXPECT_EQ(resolve_data_axis(with_axes({}, 2, 3), 12), 2);
  EXPECT_EQ(resolve_data_axis(with_axes(2, 2, 3), 12), 2);
}

TEST(Layout, WorldSizeIsTheProductOrOpen) {
  EXPECT_EQ(smallest_world(with_axes({}, 2, 3)), 6);
  EXPECT_EQ(smallest_world(with_axes(4, 2, 3)), 24);
  EXPECT_THROW((void)smallest_world(with_axes(10'000, 10'000, 10'000)), UsageError);
}

TEST(Layout, AxesThatDoNotDivideAreRefused) {
  const auto [message, hint] =
      message_and_hint([] { (void)resolve_data_axis(with_axes({}, 2, 2), 6); });
  EXPECT_EQ(message,
            "recipe: [parallel] tensor x pipeline x context is 4, which does not divide 6 ranks");
  EXPECT_EQ(hint, "start 4 or 8 ranks, or write pipeline = 1");
  EXPECT_THROW((void)resolve_data_axis(with_axes({}, 4, 1), 2), UsageError);
  EXPECT_THROW((void)resolve_data_axis(with_axes({}, 1, 1), 0), UsageError);
}

std::string hint_for(const Recipe& recipe, int ranks) {
  return message_and_hint([&] { (void)resolve_data_axis(recipe, ranks); }).second;
}

TEST(Layout, TheNearestAxesThatFillTheRanksAreNamed) {
  EXPECT_EQ(hint_for(with_axes({}, 4, 1), 2), "start 4 ranks, or write tensor = 2");
  EXPECT_EQ(hint_for(with_axes({}, 4, 2), 6), "start 8 ranks, or write tensor = 3");
  EXPECT_EQ(hint_for(with_axes({}, 1, 3), 10), "start 9 or 12 ranks, or write pipeline = 2");
  EXPECT_EQ(hint_for(with_axes({}, 2, 2), 7),
            "start 4 or 8 ranks, or write tensor = 1 and pipeline = 1");
  // Neither a data axis nor a cut by hand that was asked for is changed.
  EXPECT_EQ(hint_for(with_axes(2, 2, 2), 6), "start 8 ranks");
  EXPECT_EQ(hint_for(with_axes(2, 2, 4), 12), "start 16 ranks, or write pipeline = 3");
  Recipe cut_by_hand = with_axes({}, 1, 2);
  cut_by_hand.parallel.stage_units = {2, 2};
  EXPECT_EQ(hint_for(cut_by_hand, 3), "start 2 or 4 ranks");
}

TEST(Layout, ShardsOfOneDataRankAreNothing) {
  Recipe recipe = with_axes({}, 1, 1);
  recipe.parallel.zero_stage = 3;
  recipe.parallel.shard = 2;
  EXPECT_EQ(resolve_recipe(recipe, 1).parallel.data, 1);
  EXPECT_THROW((void)resolve_recipe(recipe, 3), UsageError);
}

TEST(Layout, ADataAxisThatDoesNotFitSaysWhatToWrite) {
  const LoadedRecipe loaded = read(kGptRecipe + "[parallel]\ndata = 3\n");
  const auto [message, hint] =
      message_and_hint([&] { (void)resolve_data_axis(loaded.recipe, 2, loaded.origins); });
  EXPECT_EQ(message, "recipe.toml:19: [parallel] data = 3 makes 3 ranks, and this run has 2");
  EXPECT_EQ(hint, "write data = 2 or \"auto\", or start with --ranks 3");
}

TEST(Layout, ABatchBelowTheDataAxisNamesTheNearest) {
  const LoadedRecipe loaded = read(kGptRecipe + "global_batch_size = 1\n");
  const auto [message, hint] =
      message_and_hint([&] { check_batch(loaded.recipe, 2, loaded.origins); });
  EXPECT_EQ(message,
            "recipe.toml:18: [train] global_batch_size = 1 is smaller than the data axis of 2 "
            "ranks; the nearest that works is 2");
  EXPECT_EQ(hint, "write global_batch_size = 2, or start at most 1 data-parallel rank");
  check_batch(loaded.recipe, 1, loaded.origins);
}

TEST(Layout, ResolveChecksAllAndSetsTheDataAxis) {
  const LoadedRecipe loaded = read(kGptRecipe);
  EXPECT_EQ(resolve_recipe(loaded.recipe, 3).parallel.data, 3);
  EXPECT_THROW((void)resolve_recipe(loaded.recipe, 65), UsageError);
}

TEST(Layout, DataThatIsReadNeedsPaths) {
  Recipe recipe = read(kGptRecipe).recipe;
  recipe.data.paths.clear();
  const auto [message, hint] = message_and_hint([&] { (void)resolve_recipe(recipe, 2); });
  EXPECT_EQ(message, "recipe: [data] paths is empty, and kind = \"text\" reads from them");
  EXPECT_THAT(hint, HasSubstr("data.paths"));
  recipe.data.kind = DataKind::kRandom;
  EXPECT_EQ(resolve_recipe(recipe, 2).parallel.data, 2);
}

}  // namespace
}  // namespace troika::testing
