#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/launch/options.h>
#include <troika/observe/machine.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "support/temporary_folder.h"

namespace troika {
namespace {

TEST(DefaultRanks, FollowTheAxesThenTheMachine) {
  EXPECT_EQ(default_ranks({.axes = 6, .all_axes = true, .usable_cores = 1}), 6);
  EXPECT_EQ(default_ranks({.usable_cores = 1}), 1);
  EXPECT_EQ(default_ranks({.usable_cores = 64}), 2);
  EXPECT_EQ(default_ranks({.usable_cores = 64, .devices = 8}), 8);
  EXPECT_EQ(default_ranks({.usable_cores = 64, .devices = 1}), 1);
  EXPECT_EQ(default_ranks({.axes = 2, .usable_cores = 64, .devices = 1}), 2);
  EXPECT_EQ(default_ranks({.axes = 4, .usable_cores = 2}), 4);
  EXPECT_EQ(default_ranks({.axes = 3, .usable_cores = 64, .devices = 8}), 6);
}

// Of a program that may or may not use GPUs, the launcher knows nothing else.
TEST(DefaultRanks, OfAnyProgramAreTheGpusOfTheHost) {
  const TemporaryFolder root;
  std::filesystem::create_directories(root.path() / "dev");
  EXPECT_EQ(default_ranks(defaults_of_host(root.path())), std::min(usable_cores(), 2));
  for (const char* gpu : {"nvidia0", "nvidia1", "nvidia2"}) {
    std::ofstream(root.path() / "dev" / gpu) << "";
  }
  EXPECT_EQ(default_ranks(defaults_of_host(root.path())), 3);
  setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  EXPECT_EQ(default_ranks(defaults_of_host(root.path())), 1);
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_EQ(default_ranks(defaults_of_host(root.path())), std::min(usable_cores(), 2));
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(PlanLaunch, OneHost) {
  const LaunchPlan plan = plan_launch({.ranks = 3}, {});
  EXPECT_EQ(plan.ranks, 3);
  EXPECT_EQ(plan.ranks_per_node, 3);
  EXPECT_EQ(plan.nodes, 1);
  EXPECT_FALSE(plan.rendezvous.has_value());
  EXPECT_EQ(plan_launch({}, {.usable_cores = 8}).ranks, 2);
  EXPECT_EQ(plan_launch({.rendezvous = "a:1"}, {.usable_cores = 8}).rendezvous, (Endpoint{"a", 1}));
}

TEST(PlanLaunch, SeveralHosts) {
  LaunchFlags flags{.ranks_per_node = 2, .nodes = 3, .node_rank = 1, .rendezvous = "a:1"};
  EXPECT_EQ(plan_launch(flags, {}).ranks, 6);
  flags.ranks_per_node.reset();
  flags.ranks = 12;
  EXPECT_EQ(plan_launch(flags, {}).ranks_per_node, 4);
  flags.ranks.reset();
  EXPECT_EQ(plan_launch(flags, {.axes = 9, .all_axes = true}).ranks_per_node, 3);
  EXPECT_EQ(plan_launch(flags, {.usable_cores = 8}).ranks, 6);
}

TEST(PlanWithoutLaunch, HostsNeedNoNumbers) {
  const LaunchPlan plan = plan_without_launch({.ranks = 64, .ranks_per_node = 8}, {});
  EXPECT_EQ(plan.ranks, 64);
  EXPECT_EQ(plan.nodes, 8);
  EXPECT_EQ(plan_without_launch({.ranks = 8, .nodes = 2}, {}).ranks_per_node, 4);
  EXPECT_EQ(plan_without_launch({.ranks_per_node = 3}, {}).ranks, 3);
}

TEST(PlanWithoutLaunch, RefusesWhatALaunchRefuses) {
  EXPECT_THROW((void)plan_without_launch({.ranks = 4, .ranks_per_node = 0}, {}), UsageError);
  EXPECT_THROW((void)plan_without_launch({.ranks = 4, .ranks_per_node = -1}, {}), UsageError);
  EXPECT_THROW((void)plan_without_launch({.ranks = 4, .nodes = 0}, {}), UsageError);
  EXPECT_THROW((void)plan_without_launch({.ranks = 8, .ranks_per_node = 3}, {}), UsageError);
  EXPECT_THROW((void)plan_without_launch({.ranks = 8, .ranks_per_node = 3, .nodes = 2}, {}),
               UsageError);
}

struct BadFlags {
  const char* name;
  LaunchFlags flags;
  const char* message;
};

class PlanLaunchRefuses : public ::testing::TestWithParam<BadFlags> {};

TEST_P(PlanLaunchRefuses, NamingTheFlag) {
  try {
    (void)plan_launch(GetParam().flags, {});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Flags, PlanLaunchRefuses,
    ::testing::Values(
        BadFlags{"NoRanks", {.ranks = 0}, "--ranks 0 is not between 1"},
        BadFlags{"NegativeRanks", {.ranks_per_node = -1}, "--ranks-per-node -1"},
        BadFlags{"NoNodes", {.nodes = 0}, "--nodes 0"},
        BadFlags{"NodeRankAlone", {.node_rank = 0}, "--nodes is not"},
        BadFlags{"NodeRankTooHigh",
                 {.nodes = 2, .node_rank = 2, .rendezvous = "a:1"},
                 "--node-rank 2 is not between 0 and 1"},
        BadFlags{"NodeRankMissing", {.nodes = 2, .rendezvous = "a:1"}, "--node-rank is not"},
        BadFlags{"RendezvousMissing", {.nodes = 2, .node_rank = 0}, "--rendezvous is not"},
        BadFlags{"RendezvousMalformed", {.rendezvous = "a:b"}, "--rendezvous"},
        BadFlags{"Contradiction",
                 {.ranks = 5, .ranks_per_node = 2, .nodes = 2, .node_rank = 0, .rendezvous = "a:1"},
                 "--ranks 5 is not --nodes 2 times --ranks-per-node 2"},
        BadFlags{"Uneven",
                 {.ranks = 5, .nodes = 2, .node_rank = 0, .rendezvous = "a:1"},
                 "5 ranks cannot be spread evenly"},
        BadFlags{"TooMany",
                 {.ranks_per_node = 60000, .nodes = 60000, .node_rank = 0, .rendezvous = "a:1"},
                 "more than 65536 ranks"}),
    [](const auto& info) { return info.param.name; });

Environment environment_of(Environment::Variables variables) {
  return Environment(std::move(variables), {"a", {}, {}, {}});
}

TEST(PlanLaunch, HintsAtWhatToDoAboutANumberOutOfRange) {
  const auto hint = [](const LaunchFlags& flags) -> std::string {
    try {
      (void)plan_launch(flags, {});
    } catch (const UsageError& error) {
      return error.hint();
    }
    return "";
  };
  EXPECT_THAT(hint({.ranks = 0}), ::testing::HasSubstr("leave --ranks out"));
  EXPECT_THAT(hint({.nodes = 2, .node_rank = 2}), ::testing::HasSubstr("numbered from 0"));
}

TEST(JoinOrLaunch, FlagsWinOverTheEnvironment) {
  const Environment::Variables torchrun = {
      {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}};
  const auto joined = join_or_launch({}, {}, environment_of(torchrun));
  ASSERT_TRUE(std::holds_alternative<World>(joined));
  EXPECT_EQ(std::get<World>(joined).size, 4);

  const auto launches = join_or_launch({.ranks = 2}, {}, environment_of(torchrun));
  ASSERT_TRUE(std::holds_alternative<LaunchPlan>(launches));
  EXPECT_EQ(std::get<LaunchPlan>(launches).ranks, 2);

  // A rank of that launch has the same flags.
  Environment::Variables ours = torchrun;
  ours["TROIKA_LAUNCHER_PID"] = "12";
  EXPECT_TRUE(
      std::holds_alternative<World>(join_or_launch({.ranks = 2}, {}, environment_of(ours))));
}

TEST(JoinOrLaunch, LaunchesWhenNobodyElseHas) {
  const auto launches = join_or_launch({}, {.usable_cores = 4}, environment_of({}));
  ASSERT_TRUE(std::holds_alternative<LaunchPlan>(launches));
  EXPECT_EQ(std::get<LaunchPlan>(launches).ranks, 2);
}

}  // namespace
}  // namespace troika
