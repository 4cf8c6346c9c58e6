// Which layouts there are to try, that few of them cover all pairs, and how they are written.
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/models/gpt/options.h>
#include <troika/models/mlp/options.h>
#include <troika/recipe/resolve.h>
#include <troika/schedule/generate.h>
#include <troika/train/job.h>
#include <troika/verify/layout_text.h>
#include <troika/verify/layouts.h>
#include <troika/verify/trials.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace troika {
namespace {

using testing::Contains;
using testing::Not;

Recipe small_recipe() {
  Recipe recipe;
  recipe.name = "small";
  auto& model = recipe.model.as<GptOptions>();
  model.layers = 4;
  model.heads = model.kv_heads = 3;
  model.dim = 24;
  model.head_dim = 8;
  recipe.data = DataOptions::named("random");
  recipe.train.global_batch_size = 7;
  recipe.train.micro_batch_size = 2;
  return recipe;
}

TrialLayout layout_called(const std::string& text) {
  return parse_layouts(text, small_recipe(), 8).at(0);
}

std::vector<std::set<int>> settings_in(const std::vector<TrialLayout>& layouts) {
  std::vector<std::set<int>> settings(settings_of(layouts.at(0), small_recipe()).size());
  for (const TrialLayout& layout : layouts) {
    const std::vector<int> own = settings_of(layout, small_recipe());
    for (std::size_t i = 0; i < own.size(); ++i) settings.at(i).insert(own[i]);
  }
  return settings;
}

TEST(Layouts, AFewHaveEverySettingThatThereIs) {
  const Recipe recipe = small_recipe();
  const std::vector<TrialLayout> all = all_layouts(recipe, 8), few = pairwise_layouts(recipe, 8);
  EXPECT_EQ(settings_in(few), settings_in(all));
  EXPECT_LT(few.size() * 10, all.size());
}

TEST(Layouts, AreThoseThatTheModelAndTheRanksAllow) {
  const Recipe recipe = small_recipe();
  for (const TrialLayout& layout : all_layouts(recipe, 8)) {
    EXPECT_LE(layout.ranks(), 8);
    EXPECT_LE(layout.parallel.tensor, 3);  // heads
  }
  EXPECT_THAT(all_layouts(recipe, 8), Contains(layout_called("data=2,tensor=2,pipeline=2")));
  EXPECT_THAT(all_layouts(recipe, 4), Not(Contains(layout_called("tensor=2,pipeline=4"))));
  for (const TrialLayout& layout : all_layouts(recipe, 1)) EXPECT_EQ(layout.ranks(), 1);
}

TEST(Layouts, AreReadAsTheyAreWritten) {
  const Recipe recipe = small_recipe();
  for (const TrialLayout& layout : pairwise_layouts(recipe, 8)) {
    const std::string text = describe(layout, recipe);
    EXPECT_EQ(layout_called(text), layout) << text;
  }
  EXPECT_EQ(parse_layouts(" tensor=2 ; data=4, zero_stage=3;", recipe, 8).size(), 2);
}

TEST(Layouts, RefusesWhatNoRecipeMaySay) {
  const Recipe recipe = small_recipe();
  for (const std::string text : {"tensro=2", "tensor=7", "pipeline=9", "data=2,zero_stage=4", ";",
                                 "data=100", "data=2,data=4"}) {
    EXPECT_THROW(static_cast<void>(parse_layouts(text, recipe, 8)), UsageError) << text;
  }
}

// What a recipe may say, and what can be generated, are told in two folders.
TEST(Layouts, HaveTheVirtualStagesThatTheirScheduleCanHave) {
  Recipe recipe = small_recipe();
  recipe.model.as<GptOptions>().layers = 16;
  int taken = 0;
  for (const std::string_view name : schedule_names()) {
    for (const int ranks : {2, 3, 4}) {
      for (int virtual_stages = 1; virtual_stages <= 4; ++virtual_stages) {
        const std::string text = "pipeline=" + std::to_string(ranks) +
                                 ",pipeline_schedule=" + std::string(name) +
                                 ",virtual_stages=" + std::to_string(virtual_stages);
        const int resolved = resolve_virtual_stages(name, virtual_stages);
        bool can_be = true;
        try {
          static_cast<void>(make_schedule(name, {ranks, resolved, 3}));
        } catch (const UsageError&) {
          can_be = false;
        }
        if (can_be) {
          const TrialLayout layout = parse_layouts(text, recipe, 8).at(0);
          EXPECT_EQ(virtual_stages_per_rank(layout.parallel), resolved) << text;
          ++taken;
        } else {
          EXPECT_THROW(static_cast<void>(parse_layouts(text, recipe, 8)), UsageError) << text;
        }
      }
    }
  }
  EXPECT_EQ(taken, 3 * (2 * 4 + 4 * 1 + 2));  // any number, one, two that may be called one
}

TEST(Layouts, OfADataAxisThatIsAutoFillTheRanks) {
  const Recipe recipe = small_recipe();
  const auto read = [&](const std::string& text, int most_ranks) {
    return describe(parse_layouts(text, recipe, most_ranks).at(0), recipe);
  };
  EXPECT_EQ(read("data=auto,tensor=2", 4), "data=2,tensor=2");
  EXPECT_EQ(read("data=auto", 3), "data=3");
  EXPECT_EQ(read("data=auto,tensor=2", 1), "tensor=2");
  EXPECT_EQ(read("tensor=2", 8), "tensor=2");
}

std::string layout_error(const std::string& text) {
  try {
    static_cast<void>(parse_layouts(text, small_recipe(), 8));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Layouts, ErrorsNameTheFlagAndTheKeyThatWasMeant) {
  EXPECT_EQ(layout_error("data=2,zero=3"),
            "--layouts 'zero=3': unknown key 'zero'; did you mean 'zero_stage'?");
  EXPECT_EQ(layout_error("pipeline=2,schedule=zb-v"),
            "--layouts 'schedule=zb-v': unknown key 'schedule'; did you mean 'pipeline_schedule'?");
  EXPECT_EQ(layout_error("tensro=2"),
            "--layouts 'tensro=2': unknown key 'tensro'; did you mean 'tensor'?");
  for (const std::string text : {"tensor=2 pipeline=2", "stage_units=[1 2]"}) {
    EXPECT_EQ(layout_error(text), "--layouts '" + text + "': a blank separates no keys");
  }
  EXPECT_EQ(layout_error(" tensor = 2 , pipeline = 2 ; data = 2 "), "");
  EXPECT_EQ(layout_error("tensor"), "--layouts 'tensor': expected KEY=VALUE");
  EXPECT_EQ(layout_error("tensor=7"),
            "--layouts 'tensor=7': [parallel] tensor = 7: the model has 3 heads, and each rank "
            "needs one");
  EXPECT_EQ(layout_error("data=100"),
            "--layouts 'data=100': [train] global_batch_size = 7 is smaller than the data axis of "
            "100 ranks; the nearest that works is 100");
}

std::string own_called(const ParallelOptions& asked, int most_ranks) {
  const OwnLayout own = own_layout(small_recipe(), asked, most_ranks);
  EXPECT_EQ(own.layout.has_value(), own.left_out.empty()) << own.name << ": " << own.left_out;
  if (!own.layout) return own.left_out;
  EXPECT_EQ(own.name, describe(*own.layout, small_recipe()));
  return own.name;
}

TEST(Layouts, OfARecipeItselfFillTheRanks) {
  ParallelOptions asked;
  asked.tensor = 2;
  asked.zero_stage = 3;
  asked.shard = 2;
  EXPECT_EQ(own_called(asked, 8), "data=4,tensor=2,zero_stage=3,shard=2");
  EXPECT_EQ(own_called(asked, 5), "data=2,tensor=2,zero_stage=3,shard=2");
  // On one data rank there is nothing to cut.
  EXPECT_EQ(own_called(asked, 2), "tensor=2");
  asked.data = 2;
  EXPECT_EQ(own_called(asked, 8), "data=2,tensor=2,zero_stage=3,shard=2");
  // One rank's, which may be the reference.
  EXPECT_EQ(own_called(ParallelOptions(), 1), "data=1");
  ParallelOptions one_rank;
  one_rank.activation_checkpoint = ActivationCheckpoint::kFull;
  EXPECT_EQ(own_called(one_rank, 1), "activation_checkpoint=full");
}

TEST(Layouts, OfARecipeItselfThatCannotBeTriedSayWhy) {
  ParallelOptions asked;
  asked.tensor = 2;
  EXPECT_EQ(own_called(asked, 1), "the recipe's own layout (tensor=2) needs 2 ranks: --ranks 2");
  asked.data = 2;
  asked.zero_stage = 3;
  EXPECT_EQ(own_called(asked, 3),
            "the recipe's own layout (data=2,tensor=2,zero_stage=3) needs 4 ranks: --ranks 4");
  asked.data = 40;
  EXPECT_EQ(own_called(asked, 3),
            "the recipe's own layout (data=40,tensor=2,zero_stage=3) needs 80 ranks, and --ranks "
            "takes at most 64");
  // Each axis at its largest: 10^12 ranks, which are not those of an int.
  ParallelOptions huge;
  huge.data = huge.tensor = huge.pipeline = 10'000;
  EXPECT_THAT(own_called(huge, 64), testing::HasSubstr("needs 1000000000000 ranks"));
  ParallelOptions impossible;
  impossible.tensor = 4;
  EXPECT_EQ(own_called(impossible, 4),
            "the recipe's own layout (tensor=4): [parallel] tensor = 4: the model has 3 heads, and "
            "each rank needs one");
  EXPECT_EQ(own_called(ParallelOptions(), 8),
            "the recipe's own layout (data=8): [train] global_batch_size = 7 is smaller than the "
            "data axis of 8 ranks; the nearest that works is 8");
}

TEST(Layouts, OfAnMlpHaveNoAttentionToRunAgain) {
  Recipe recipe = small_recipe();
  recipe.model = ModelOptions(mlp_kind(), MlpOptions{6, {8, 5}, 3});
  std::set<ActivationCheckpoint> found;
  for (const TrialLayout& layout : all_layouts(recipe, 4)) {
    found.insert(layout.parallel.activation_checkpoint);
  }
  EXPECT_THAT(found,
              testing::ElementsAre(ActivationCheckpoint::kNone, ActivationCheckpoint::kFull));
}

TEST(Layouts, PromiseBitsWhereTheDesignDoes) {
  Recipe recipe = small_recipe();
  const TrialLayout full = layout_called(
      "data=2,tensor=2,pipeline=2,pipeline_schedule=zb-h1,zero_stage=2,"
      "activation_checkpoint=full");
  recipe.model.as<GptOptions>().tied_embeddings = false;
  EXPECT_EQ(bit_reference_layout(full, recipe), layout_called("data=2,tensor=2"));
  recipe.model.as<GptOptions>().tied_embeddings = true;
  EXPECT_EQ(bit_reference_layout(full, recipe),
            layout_called("data=2,tensor=2,pipeline=2,pipeline_schedule=zb-h1"));
  EXPECT_EQ(bit_reference_layout(layout_called("data=2"), recipe), std::nullopt);
  // Ranks are summed before microbatches, so that another stage that cuts each has the same bits.
  EXPECT_EQ(bit_reference_layout(layout_called("data=2,zero_stage=3,cut_gradients=each_microbatch"),
                                 recipe),
            layout_called("data=2,zero_stage=2,cut_gradients=each_microbatch"));
  EXPECT_EQ(bit_reference_layout(layout_called("data=2,zero_stage=2,cut_gradients=each_microbatch"),
                                 recipe),
            std::nullopt);
  EXPECT_EQ(tolerance_of(full).tau, 1e-11);
  EXPECT_EQ(tolerance_of(layout_called("data=4,pipeline=2")).tau, 1e-12);
}

TEST(Layouts, TrialsBeginWithTheReferenceAndPutTwinsFirst) {
  const Recipe recipe = small_recipe();
  const auto trials = plan_trials(recipe, parse_layouts("data=2,zero_stage=3; data=2", recipe, 8));
  ASSERT_EQ(trials.size(), 3);
  EXPECT_EQ(trials[0].ranks, 1);
  EXPECT_EQ(trials[1].name, "data=2");
  EXPECT_EQ(trials[2].name, "data=2,zero_stage=3");
  EXPECT_EQ(trials[2].bit_reference, 1);
  EXPECT_TRUE(trials[1].is_needed_later);
}

TEST(Layouts, ResultsComeBackFromTheirLine) {
  TrialResult result;
  result.layout = "data=2";
  result.ranks = 2;
  result.with_reference = {false, "loss of step 1", 3, 1e-9, "gradients of step 1: a"};
  result.with_bit_reference = Comparison();
  const TrialResult back = trial_result_of(to_json(result));
  EXPECT_EQ(to_json(back), to_json(result));
  EXPECT_FALSE(back.agrees());
  EXPECT_EQ(back.describe_failure(), "DIFFERS: loss of step 1");
  EXPECT_THROW(static_cast<void>(trial_result_of("{}")), DataError);
}

// Ranks are laid out with the tensor axis next to each other, then data, then pipeline.
class ReductionOrderOf : public testing::Test {
 protected:
  ReductionOrderOf() { recipe_.model = ModelOptions(mlp_kind()); }  // which ties nothing
  void set_axes(std::int64_t pipeline, std::int64_t data, std::int64_t tensor) {
    recipe_.parallel.pipeline = pipeline;
    recipe_.parallel.data = data;
    recipe_.parallel.tensor = tensor;
  }
  // "aab": ranks 0 and 1 on one host, 2 on another.
  [[nodiscard]] EngineOptions::ReductionOrder on(const std::string& hosts) const {
    std::vector<std::string> by_rank;
    for (const char host : hosts) by_rank.emplace_back(1, host);
    return reduction_order_of(recipe_, by_rank);
  }
  static constexpr auto kFastest = EngineOptions::ReductionOrder::kFastest;
  static constexpr auto kInOrder = EngineOptions::ReductionOrder::kInOrder;
  Recipe recipe_;
};

TEST_F(ReductionOrderOf, DataGroupsOfOneTensorGroup) {
  set_axes(1, 3, 2);  // {0, 2, 4}, {1, 3, 5}
  EXPECT_EQ(on("aaaaaa"), kFastest);
  EXPECT_EQ(on("aaaabb"), kFastest);
  EXPECT_EQ(on("aaabbb"), kInOrder);  // aab, abb
}

TEST_F(ReductionOrderOf, TensorGroupsOfOneStage) {
  set_axes(1, 2, 4);  // {0, 1, 2, 3}, {4, 5, 6, 7}
  EXPECT_EQ(on("aaaabbbb"), kFastest);
  EXPECT_EQ(on("aaaaaabb"), kInOrder);  // aaaa, aabb
  set_axes(2, 1, 4);                    // of two stages: they hold nothing alike
  EXPECT_EQ(on("aaaaaabb"), kFastest);
}

TEST_F(ReductionOrderOf, StagesHoldNothingAlike) {
  set_axes(2, 3, 1);  // {0, 1, 2}, {3, 4, 5}
  EXPECT_EQ(on("aaaabb"), kFastest);
}

TEST_F(ReductionOrderOf, OfTwoTermsThereIsOneSum) {
  set_axes(2, 2, 2);
  EXPECT_EQ(on("abbbaaab"), kFastest);
}

TEST_F(ReductionOrderOf, ReplicasThatEachAddTheirOwnHalves) {
  set_axes(1, 6, 1);
  recipe_.parallel.shard = 2;  // then {0, 2, 4}, {1, 3, 5}
  EXPECT_EQ(on("aaabbb"), kInOrder);
  EXPECT_EQ(on("aabbcc"), kFastest);
  recipe_.parallel.zero_stage = 1;  // they hold other shards
  EXPECT_EQ(on("aaabbb"), kFastest);
}

TEST_F(ReductionOrderOf, WhatAsksForOrder) {
  set_axes(1, 4, 1);
  EXPECT_EQ(on("aabb"), kFastest);
  recipe_.train.deterministic = true;
  EXPECT_EQ(on("aabb"), kInOrder);
  recipe_.train.deterministic = false;
  set_axes(2, 2, 1);
  EXPECT_EQ(on("aabb"), kFastest);
  recipe_.model = ModelOptions(gpt_kind());
  recipe_.model.as<GptOptions>().tied_embeddings = true;
  EXPECT_EQ(on("aabb"), kInOrder);
}

}  // namespace
}  // namespace troika
