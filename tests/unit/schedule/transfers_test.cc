#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/schedule/generate.h>

#include <algorithm>
#include <string>

#include "execution.h"
#include "programs.h"

namespace troika {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> described(const Program& program) {
  std::vector<std::string> words;
  for (const ScheduleAction& action : program) words.push_back(describe(action));
  return words;
}

TEST(Transfers, AreSentAtOnceAndReceivedOneActionAhead) {
  const Schedule schedule = make_schedule("1f1b", {2, 1, 2});
  EXPECT_THAT(described(schedule.programs[0]),
              ElementsAre("F0 (stage 0)", "send activation 0 (for stage 1)",
                          "receive gradient 0 (for stage 0)", "F1 (stage 0)",
                          "send activation 1 (for stage 1)", "receive gradient 1 (for stage 0)",
                          "B0 (stage 0)", "B1 (stage 0)"));
  EXPECT_THAT(described(schedule.programs[1]),
              ElementsAre("receive activation 0 (for stage 1)", "F0 (stage 1)",
                          "receive activation 1 (for stage 1)", "B0 (stage 1)",
                          "send gradient 0 (for stage 0)", "F1 (stage 1)", "B1 (stage 1)",
                          "send gradient 1 (for stage 0)"));
}

TEST(Transfers, ThereAreNoneInsideARank) {
  for (const char* name : {"gpipe", "interleaved-1f1b", "zb-v"}) {
    const Schedule schedule = make_schedule(name, {1, 2, 5});
    for (const ScheduleAction& action : schedule.programs[0]) {
      EXPECT_TRUE(action.is_compute()) << describe(action);
    }
  }
  const Schedule v = make_schedule("zb-v", {3, 2, 5});
  for (const ScheduleAction& action : v.programs[2]) {
    if (action.is_compute()) continue;
    EXPECT_EQ(v.peer(action), 1) << describe(action);
  }
}

// The n-th receive from a rank is the n-th that it sends, for every pair.
TEST(Transfers, ReceivesFollowTheOrderOfTheSender) {
  for (const char* name : {"interleaved-1f1b", "zb-v", "gpipe"}) {
    for (const int ranks : {2, 3, 5}) {
      const Schedule schedule = make_schedule(name, {ranks, 2, 7});
      for (int from = 0; from < ranks; ++from) {
        for (int to = 0; to < ranks; ++to) {
          std::vector<std::string> sent;
          std::vector<std::string> received;
          for (const ScheduleAction& action : schedule.programs[static_cast<std::size_t>(from)]) {
            if (action.is_send() && schedule.peer(action) == to) {
              sent.push_back(describe(action).substr(5));
            }
          }
          for (const ScheduleAction& action : schedule.programs[static_cast<std::size_t>(to)]) {
            if (action.is_receive() && schedule.peer(action) == from) {
              received.push_back(describe(action).substr(8));
            }
          }
          EXPECT_EQ(sent, received) << name << " from " << from << " to " << to;
        }
      }
    }
  }
}

// Rank 1 uses the second message first: the first has to be received before it all the same.
TEST(Transfers, AreReceivedEarlierWhereTheirOrderAsksForIt) {
  constexpr auto kF = ActionKind::kForward;
  constexpr auto kB = ActionKind::kBackward;
  const Schedule schedule =
      testing_support::two_ranks({{{kF, 0, 0}, {kF, 0, 1}, {kB, 0, 0}, {kB, 0, 1}},
                                  {{kF, 1, 1}, {kF, 1, 0}, {kB, 1, 0}, {kB, 1, 1}}});
  EXPECT_THAT(
      described(schedule.programs[1]),
      ElementsAre("receive activation 0 (for stage 1)", "receive activation 1 (for stage 1)",
                  "F1 (stage 1)", "F0 (stage 1)", "B0 (stage 1)", "send gradient 0 (for stage 0)",
                  "B1 (stage 1)", "send gradient 1 (for stage 0)"));
}

TEST(Transfers, OfAnUnusedTensorAreABugOfTheGenerator) {
  Schedule schedule = make_schedule("1f1b", {2, 1, 1});
  schedule.programs[0] = {{ActionKind::kForward, 0, 0}};
  schedule.programs[1].clear();
  EXPECT_THROW(add_transfers(schedule), InternalError);
}

// As where nothing before a stage is trained.
TEST(Transfers, NoGradientGoesToStagesWithoutABackwardPass) {
  const Schedule schedule = without_backward_before(make_schedule("1f1b", {2, 1, 2}), 1);
  EXPECT_THAT(described(schedule.programs[0]),
              ElementsAre("F0 (stage 0)", "send activation 0 (for stage 1)", "F1 (stage 0)",
                          "send activation 1 (for stage 1)"));
  EXPECT_THAT(described(schedule.programs[1]),
              ElementsAre("receive activation 0 (for stage 1)", "F0 (stage 1)",
                          "receive activation 1 (for stage 1)", "B0 (stage 1)", "F1 (stage 1)",
                          "B1 (stage 1)"));
}

TEST(Transfers, EveryScheduleWorksWithoutABackwardPassOfItsFirstStages) {
  for (const std::string_view name : schedule_names()) {
    const int virtual_stages = name == "zb-v" || name == "interleaved-1f1b" ? 2 : 1;
    for (const int ranks : {1, 2, 3}) {
      const Schedule whole = make_schedule(name, {ranks, virtual_stages, 7});
      for (int first = 0; first <= whole.stages(); ++first) {
        EXPECT_TRUE(testing_support::works(without_backward_before(whole, first)))
            << name << " on " << ranks << " ranks from stage " << first;
      }
    }
  }
}

}  // namespace
}  // namespace troika
