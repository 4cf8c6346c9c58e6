// The table of `troika verify` from results of every kind.
#include <gmock/gmock.h>
#include <troika/cli/verify_report.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace troika {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

TrialResult result_of(const std::string& layout) {
  TrialResult result;
  result.layout = layout;
  result.ranks = 2;
  return result;
}

TrialResult differing() {
  TrialResult result = result_of("tensor=2");
  result.with_reference = {false, "loss of step 1", 30, 1e-9, "gradients of step 1: a"};
  return result;
}

TrialResult failed() {
  TrialResult result = result_of("data=2");
  result.error = "rank 1 has died";
  return result;
}

TEST(VerifyReport, SaysInALineHowATrialCameOut) {
  TrialResult same_bits = result_of("pipeline=2");
  same_bits.with_bit_reference = Comparison();
  EXPECT_THAT(line_of(result_of("data=1")), HasSubstr("agrees  "));
  EXPECT_THAT(line_of(same_bits), HasSubstr("agrees, bits"));
  EXPECT_THAT(line_of(same_bits), EndsWith("  pipeline=2\n"));
  EXPECT_THAT(line_of(differing()), HasSubstr("1.0e-09"));
  EXPECT_THAT(line_of(differing()), EndsWith("       DIFFERS: loss of step 1\n"));
  EXPECT_THAT(line_of(failed()), EndsWith("       FAILED: rank 1 has died\n"));
}

TEST(VerifyReport, ConcludesFromAllResults) {
  const std::vector<TrialResult> good = {result_of("data=1"), result_of("data=2")};
  const std::vector<TrialResult> bad = {result_of("data=1"), failed(), differing(),
                                        result_of("data=2,tensor=2")};
  EXPECT_TRUE(all_agree(good));
  EXPECT_EQ(summary_of(good), "it agrees with one rank\n");
  const std::vector<TrialResult> more = {result_of("data=1"), result_of("data=2"),
                                         result_of("data=3")};
  EXPECT_EQ(summary_of(more), "all 2 agree with one rank\n");
  const std::vector<TrialResult> one_bad = {result_of("data=1"), failed()};
  EXPECT_EQ(summary_of(one_bad), "1 of 1 does not agree with one rank\n");
  EXPECT_FALSE(all_agree(bad));
  EXPECT_EQ(summary_of(bad), "2 of 3 do not agree with one rank\n");
  VerifyOptions options;
  options.steps = 5;
  const auto json = nlohmann::json::parse(to_json(options, VerifyPlan(), bad));
  EXPECT_EQ(json.at("agree"), false);
  EXPECT_EQ(json.at("steps"), 5);
  EXPECT_EQ(json.at("layouts").size(), 4);
  EXPECT_EQ(json.at("layouts").at(1).at("error"), "rank 1 has died");
  EXPECT_FALSE(json.contains("own_layout"));
}

OwnLayout too_large() {
  OwnLayout own;
  own.name = "tensor=4,pipeline=2";
  own.left_out = "the recipe's own layout (tensor=4,pipeline=2) needs 8 ranks: --ranks 8";
  return own;
}

TEST(VerifyReport, TellsWhatBecameOfTheRecipesOwnLayout) {
  const std::vector<TrialResult> results = {result_of("data=1"), result_of("data=2")};
  const VerifyOptions options;
  VerifyPlan plan;
  plan.trials.resize(2);
  plan.own = too_large();
  EXPECT_THAT(heading_of(options, plan.trials[0].recipe, plan),
              HasSubstr("samples a step\n" + plan.own->left_out + "\nranks"));
  auto json = nlohmann::json::parse(to_json(options, plan, results));
  EXPECT_TRUE(json.at("own_layout").is_null());
  EXPECT_EQ(json.at("own_layout_left_out").get<std::string>(), plan.own->left_out);
  plan.own->layout = TrialLayout();
  plan.own->left_out = "";
  EXPECT_THAT(heading_of(options, plan.trials[0].recipe, plan), HasSubstr("samples a step\nranks"));
  json = nlohmann::json::parse(to_json(options, plan, results));
  EXPECT_EQ(json.at("own_layout"), "tensor=4,pipeline=2");
  EXPECT_FALSE(json.contains("own_layout_left_out"));
}

TEST(VerifyReport, SaysFirstWhatIsGoingToBeTried) {
  VerifyPlan plan;
  std::vector<Trial>& trials = plan.trials;
  trials.resize(3);
  trials[2].ranks = 4;
  for (Trial& trial : trials) trial.recipe.train.global_batch_size = 16;
  Recipe user = trials[0].recipe;
  const VerifyOptions options;
  EXPECT_THAT(heading_of(options, user, plan),
              StartsWith("2 layouts of up to 4 ranks against one rank: 3 steps each, fp64, SGD, 16 "
                         "samples a step\nranks"));
  user.train.global_batch_size = 512;
  EXPECT_THAT(heading_of(options, user, plan), HasSubstr("(the recipe's 512 would take longer)"));
  trials.pop_back();
  VerifyOptions one_step;
  one_step.steps = 1;
  EXPECT_THAT(heading_of(one_step, user, plan),
              StartsWith("1 layout of up to 1 rank against one rank: 1 step each,"));
}

}  // namespace
}  // namespace troika
