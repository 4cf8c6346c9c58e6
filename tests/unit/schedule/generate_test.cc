#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/schedule/generate.h>

#include <map>
#include <string>

namespace troika {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// "F0 F1 B0 W0" of one rank; virtual stages above 0 in lower case.
std::string computing(const Schedule& schedule, int rank) {
  const int first = schedule.stages_of(rank).front();
  std::string text;
  for (const ScheduleAction& action : schedule.programs.at(static_cast<std::size_t>(rank))) {
    if (!action.is_compute()) continue;
    std::string name(name_of(action.kind));
    if (action.stage != first) name[0] = static_cast<char>(name[0] - 'A' + 'a');
    text += (text.empty() ? "" : " ") + name + std::to_string(action.microbatch);
  }
  return text;
}

TEST(Generate, NamesAreThoseOfTheRecipe) {
  const auto names = schedule_names();
  EXPECT_THAT(
      std::vector<std::string_view>(names.begin(), names.end()),
      ElementsAre("gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v"));
}

TEST(Generate, PlacesStagesRoundRobinOrInAV) {
  EXPECT_THAT(make_schedule("interleaved-1f1b", {3, 2, 3}).rank_of_stage,
              ElementsAre(0, 1, 2, 0, 1, 2));
  const Schedule v = make_schedule("zb-v", {3, 2, 3});
  EXPECT_THAT(v.rank_of_stage, ElementsAre(0, 1, 2, 2, 1, 0));
  EXPECT_THAT(v.stages_of(1), ElementsAre(1, 4));
}

TEST(Generate, GpipeDoesAllForwardsFirst) {
  EXPECT_EQ(computing(make_schedule("gpipe", {2, 1, 3}), 1), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(computing(make_schedule("gpipe", {2, 2, 2}), 0), "F0 F1 f0 f1 b0 b1 B0 B1");
}

TEST(Generate, OneForwardOneBackwardWarmsUpByItsPlace) {
  const Schedule schedule = make_schedule("1f1b", {3, 1, 4});
  EXPECT_EQ(computing(schedule, 0), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(computing(schedule, 1), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(computing(schedule, 2), "F0 B0 F1 B1 F2 B2 F3 B3");
}

TEST(Generate, EagerOneForwardOneBackwardIsTwiceAsFarAhead) {
  const Schedule schedule = make_schedule("eager-1f1b", {3, 1, 6});
  EXPECT_EQ(computing(schedule, 0), "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5");
  EXPECT_EQ(computing(schedule, 1), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5");
  EXPECT_EQ(computing(schedule, 2), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5");
}

TEST(Generate, InterleavedTakesGroupsByVirtualStage) {
  const Schedule schedule = make_schedule("interleaved-1f1b", {2, 2, 4});
  EXPECT_EQ(computing(schedule, 0), "F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 b2 b3 B2 B3");
  EXPECT_EQ(computing(schedule, 1), "F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3");
}

TEST(Generate, InterleavedLeavesOutWhatTheLastGroupLacks) {
  const Schedule full = make_schedule("interleaved-1f1b", {4, 3, 8});
  const Schedule uneven = make_schedule("interleaved-1f1b", {4, 3, 6});
  for (std::size_t rank = 0; rank < 4; ++rank) {
    Program left;
    for (const ScheduleAction& action : full.programs[rank]) {
      if (action.is_compute() && action.microbatch < 6) left.push_back(action);
    }
    Program computed;
    for (const ScheduleAction& action : uneven.programs[rank]) {
      if (action.is_compute()) computed.push_back(action);
    }
    EXPECT_EQ(left, computed);
  }
}

TEST(Generate, InterleavedWithOneVirtualStageIs1F1B) {
  EXPECT_EQ(make_schedule("interleaved-1f1b", {4, 1, 7}).programs,
            make_schedule("1f1b", {4, 1, 7}).programs);
}

// How many forwards come before the first backward, and how many gradients of the input come
// before the first of the weights.
TEST(Generate, ZeroBubbleWarmsUpAndLagsAsThePaperSays) {
  for (const auto& [name, factor] : std::map<std::string, int>{{"zb-h1", 1}, {"zb-h2", 2}}) {
    const Schedule schedule = make_schedule(name, {4, 1, 16});
    for (int stage = 0; stage < 4; ++stage) {
      const std::string text = computing(schedule, stage);
      const std::string before_backward = text.substr(0, text.find('B'));
      const std::string before_weight = text.substr(0, text.find('W'));
      EXPECT_EQ(std::count(before_backward.begin(), before_backward.end(), 'F'),
                factor * (3 - stage) + 1);
      EXPECT_EQ(std::count(before_weight.begin(), before_weight.end(), 'B'), factor * stage + 1);
    }
  }
  EXPECT_EQ(computing(make_schedule("zb-h1", {2, 1, 3}), 0), "F0 F1 B0 W0 F2 B1 W1 B2 W2");
  EXPECT_EQ(computing(make_schedule("zb-h1", {2, 1, 3}), 1), "F0 B0 F1 B1 W0 F2 B2 W1 W2");
}

TEST(Generate, ZeroBubbleVGoesDownAndUp) {
  const Schedule schedule = make_schedule("zb-v", {2, 2, 4});
  EXPECT_EQ(computing(schedule, 0),
            "F0 F1 F2 f0 b0 w0 f1 b1 w1 F3 B0 W0 f2 b2 w2 B1 W1 f3 b3 w3 B2 W2 B3 W3");
  EXPECT_EQ(computing(schedule, 1),
            "F0 f0 F1 f1 b0 w0 F2 B0 W0 f2 b1 w1 F3 B1 W1 f3 b2 w2 B2 b3 B3 W2 w3 W3");
}

TEST(Generate, RefusesVirtualStagesThatAScheduleCannotHave) {
  const auto refused = [](std::string_view name, int virtual_stages, const std::string& what,
                          const std::string& instead) {
    try {
      check_schedule(name, {4, virtual_stages, 8});
      ADD_FAILURE() << name << " with " << virtual_stages;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(what));
      EXPECT_THAT(error.what(), HasSubstr(std::string(name)));
      EXPECT_THAT(error.hint(), HasSubstr(instead));
    }
    EXPECT_THROW((void)make_schedule(name, {4, virtual_stages, 8}), UsageError);
  };
  refused("1f1b", 2, "1 virtual stage a rank, not 2", "interleaved-1f1b");
  refused("zb-h1", 2, "1 virtual stage a rank, not 2", "zb-v");
  refused("zb-h2", 4, "1 virtual stage a rank, not 4", "zb-v");
  refused("zb-v", 1, "2 virtual stages a rank, not 1", "zb-h1");
  refused("zb-v", 3, "2 virtual stages a rank, not 3",
          "set virtual_stages = 2 (--virtual-stages 2)");
  EXPECT_EQ(min_virtual_stages("zb-v"), 2);
  EXPECT_EQ(min_virtual_stages("gpipe"), 1);
}

TEST(Generate, OneVirtualStageMeansTheFewestThatAScheduleHas) {
  for (const std::string_view name : schedule_names()) {
    for (const int asked : {0, 1}) {
      EXPECT_EQ(resolve_virtual_stages(name, asked), name == "zb-v" ? 2 : 1) << name;
    }
    for (const int asked : {-1, 2, 3})
      EXPECT_EQ(resolve_virtual_stages(name, asked), asked) << name;
  }
  EXPECT_THROW((void)resolve_virtual_stages("nothing", 2), UsageError);
}

TEST(Generate, RefusesNamesAndSizesThatMakeNoSense) {
  try {
    check_schedule("zb-h3", {4, 1, 8});
    ADD_FAILURE() << "zb-h3";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'zb-h3'"));
    EXPECT_THAT(error.hint(), HasSubstr("did you mean zb-h"));
  }
  EXPECT_THROW((void)min_virtual_stages("nothing"), UsageError);
  EXPECT_THROW(check_schedule("1f1b", {0, 1, 8}), UsageError);
  EXPECT_THROW(check_schedule("gpipe", {4, 0, 8}), UsageError);
  EXPECT_THROW(check_schedule("1f1b", {4, 1, 0}), UsageError);
}

TEST(Action, SaysWhatItIs) {
  EXPECT_EQ(describe({ActionKind::kForward, 1, 3}), "F3 (stage 1)");
  EXPECT_EQ(describe({ActionKind::kBackwardWeight, 0, 2}), "W2 (stage 0)");
  EXPECT_EQ(describe({ActionKind::kReceiveGradient, 0, 2}), "receive gradient 2 (for stage 0)");
}

TEST(Action, ATransferNamesTheStageThatUsesTheTensor) {
  const Schedule schedule = make_schedule("zb-v", {3, 2, 3});
  const ScheduleAction send{ActionKind::kSendActivation, 1, 0};
  EXPECT_EQ(send.source_stage(), 0);
  EXPECT_EQ(schedule.peer(send), 1);
  const ScheduleAction receive{ActionKind::kReceiveGradient, 4, 0};
  EXPECT_EQ(receive.source_stage(), 5);
  EXPECT_EQ(schedule.peer(receive), 0);
  EXPECT_FALSE(schedule.crosses(2, 3));  // the turn of the V
  EXPECT_TRUE(schedule.crosses(3, 4));
}

}  // namespace
}  // namespace troika
