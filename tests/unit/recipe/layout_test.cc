// The axes of a job from the recipe and the number of ranks, and hints for numbers that do not fit.
#include <troika/data/sources/documents.h>
#include <troika/recipe/resolve.h>
#include <troika/sync/local_sync.h>

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

TEST(Layout, FewerDataRanksMayBeEnough) {
  Recipe recipe = with_axes(4, 2, 1);
  EXPECT_THROW((void)resolve_data_axis(recipe, 4), UsageError);
  recipe.elastic.min_data = 2;
  EXPECT_EQ(resolve_data_axis(recipe, 8), 4);
  EXPECT_EQ(resolve_data_axis(recipe, 4), 2);
  const auto [message, hint] = message_and_hint([&] { (void)resolve_data_axis(recipe, 2); });
  EXPECT_EQ(message, "recipe: [elastic] min_data = 2: 2 ranks make a data axis of 1");
  EXPECT_EQ(hint, "start with --ranks 4 or more");
  EXPECT_THROW((void)resolve_data_axis(recipe, 16), UsageError);  // more than there are to be
}

TEST(Layout, IslandsAreHostsOrAsAsked) {
  Recipe recipe = with_axes({}, 2, 1);
  EXPECT_EQ(resolve_islands(recipe, 8, 2), 1);  // of all_reduce
  recipe.sync = Chosen<SyncKind>::named("local");
  EXPECT_EQ(resolve_islands(recipe, 8, 2), 4);
  EXPECT_EQ(resolve_islands(recipe, 1, 1), 1);
  recipe.sync.as<LocalOptions>().island = 4;
  EXPECT_EQ(resolve_islands(recipe, 8, 2), 2);
  EXPECT_THROW((void)resolve_islands(recipe, 6, 2), UsageError);
  EXPECT_THROW((void)resolve_islands(recipe, 4, 4), UsageError);  // one alone
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

// The hint for a GPT of 3 heads and 4 layers.
std::string hint_of(std::vector<std::string> parallel, KnownRanks ranks) {
  std::vector<std::string> overrides = {"model.heads=3", "model.dim=96", "model.layers=4"};
  for (const std::string& one : parallel) overrides.push_back("parallel." + one);
  return message_and_hint([&] {
           const LoadedRecipe loaded = parse_recipe(kGptRecipe, "recipe.toml", overrides, ranks);
           if (ranks) {
             (void)resolve_recipe(loaded.recipe, static_cast<int>(*ranks), loaded.origins);
           }
         })
      .second;
}

TEST(Layout, AxesThatTheModelHasNotAreRefusedWithThoseThatFillTheRanks) {
  EXPECT_EQ(hint_of({"tensor=4"}, {}), "write tensor = 3 or less");
  EXPECT_EQ(hint_of({"tensor=4"}, 4), "write tensor = 2");
  EXPECT_EQ(hint_of({"tensor=4", "data=2"}, 8), "write tensor = 2 and data = \"auto\"");
  EXPECT_EQ(hint_of({"pipeline=5"}, {}), "write pipeline = 4 or less, or more layers");
  EXPECT_EQ(hint_of({"pipeline=5"}, 5), "write pipeline = 1, or more layers");
  EXPECT_EQ(hint_of({"pipeline=6"}, 6), "write pipeline = 3, or more layers");
  EXPECT_EQ(hint_of({"pipeline=6", "pipeline_schedule=zb-v"}, 6),
            "write pipeline = 3 and pipeline_schedule = \"zb-h1\", or more layers");
}

// The settings that a hint names first; none where it says how many ranks to start alone.
std::vector<std::string> first_settings(const std::string& hint) {
  const std::size_t begin = hint.find("write ");
  if (begin == std::string::npos) return {};
  std::string words = hint.substr(begin + 6);
  words = words.substr(0, words.find(" or "));
  if (words.ends_with(',')) words.pop_back();
  std::vector<std::string> settings;
  for (std::size_t end = 0; end != std::string::npos;) {
    end = words.find(" and ");
    std::string one = words.substr(0, end);
    one.replace(one.find(" = "), 3, "=");
    settings.push_back(std::move(one));
    if (end != std::string::npos) words = words.substr(end + 5);
  }
  return settings;
}

TEST(Layout, WhatAHintSaysIsNotRefused) {
  int followed = 0;
  const auto follow = [&](std::vector<std::string> asked, int ranks) {
    const std::string hint = hint_of(asked, ranks);
    const std::vector<std::string> settings = first_settings(hint);
    if (settings.empty()) return;
    const std::string before = ::testing::PrintToString(asked);
    asked.insert(asked.end(), settings.begin(), settings.end());
    EXPECT_EQ(hint_of(asked, ranks), "") << before << " on " << ranks << " ranks: " << hint;
    ++followed;
  };
  for (const int ranks : {2, 4, 5, 6, 12}) {
    for (const std::string data : {"data=\"auto\"", "data=2"}) {
      for (int pipeline = 1; pipeline <= 6; ++pipeline) {
        const std::string stages = "pipeline=" + std::to_string(pipeline);
        follow({data, stages, "tensor=4"}, ranks);
        for (const std::string schedule : {"gpipe", "1f1b", "zb-h1", "zb-v"}) {
          for (const std::string virtual_stages : {"1", "2", "3"}) {
            follow({data, stages, "tensor=2", "pipeline_schedule=" + schedule,
                    "virtual_stages=" + virtual_stages},
                   ranks);
          }
        }
      }
    }
  }
  EXPECT_GT(followed, 100);
}

TEST(Layout, ShardsOfOneDataRankAreNothing) {
  Recipe recipe = with_axes({}, 1, 1);
  recipe.parallel.zero_stage = 3;
  recipe.parallel.shard = 2;
  EXPECT_EQ(resolve_recipe(recipe, 1).parallel.data, 1);
  EXPECT_THROW((void)resolve_recipe(recipe, 3), UsageError);
}

TEST(Layout, GradientsThatAScheduleNeedsWholeAreNotCut) {
  Recipe recipe = with_axes(2, 1, 2);
  recipe.parallel.zero_stage = 2;
  recipe.parallel.cut_gradients = CutGradients::kEachMicrobatch;
  for (const std::string schedule : {"zb-h1", "zb-h2"}) {
    recipe.parallel.pipeline_schedule = schedule;
    const auto [message, hint] = message_and_hint([&] { check_split(recipe); });
    EXPECT_EQ(message,
              "recipe: [parallel] cut_gradients = \"each_microbatch\": "
              "pipeline_schedule = \"" +
                  schedule + "\" needs whole gradients");
    EXPECT_EQ(hint, "write cut_gradients = \"last_microbatch\", or pipeline_schedule = \"1f1b\"");
  }
  // Where nothing is cut, and without a pipeline, every setting is taken.
  recipe.parallel.zero_stage = 1;
  EXPECT_NO_THROW(check_split(recipe));
  recipe.parallel.zero_stage = 2;
  recipe.parallel.pipeline = 1;
  EXPECT_NO_THROW(check_split(recipe));
  recipe.parallel.pipeline = 2;
  recipe.parallel.pipeline_schedule = "1f1b";
  EXPECT_NO_THROW(check_split(recipe));
}

TEST(Layout, ADataAxisThatDoesNotFitSaysWhatToWrite) {
  const LoadedRecipe loaded = read(kGptRecipe + "[parallel]\ndata = 3\n");
  const auto [message, hint] =
      message_and_hint([&] { (void)resolve_data_axis(loaded.recipe, 2, loaded.origins); });
  EXPECT_EQ(message,
            "recipe.toml:19: [parallel] data = 3: data x tensor x pipeline x context is 3, and "
            "this run has 2 ranks");
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
  recipe.data.as<DocumentOptions>().paths.clear();
  const auto [message, hint] = message_and_hint([&] { (void)resolve_recipe(recipe, 2); });
  EXPECT_EQ(message, "recipe: [data] paths is empty, and kind = \"text\" reads from them");
  EXPECT_THAT(hint, HasSubstr("data.paths"));
  recipe.data = DataOptions::named("random");
  EXPECT_EQ(resolve_recipe(recipe, 2).parallel.data, 2);
}

}  // namespace
}  // namespace troika::testing
