#include "environments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/rendezvous/world.h>

namespace troika {
namespace {

using namespace troika::testing;
using ::testing::HasSubstr;

World world_of(Environment::Variables variables) {
  const auto world = world_from_environment(environment_of(std::move(variables)));
  EXPECT_TRUE(world.has_value());
  return world.value_or(World{});
}

// The message of the UsageError that reading the variables throws.
std::string refusal(const Environment& environment) {
  try {
    (void)world_from_environment(environment);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "not refused";
}
std::string refusal(Environment::Variables variables) {
  return refusal(environment_of(std::move(variables)));
}

TEST(World, NobodyLaunchedThis) {
  EXPECT_FALSE(world_from_environment(environment_of({{"HOME", "/home/a"}})).has_value());
  EXPECT_FALSE(world_from_environment(environment_of({{"RANK", ""}})).has_value());
  const World alone = single_process_world(environment_of({}));
  EXPECT_EQ(alone.rank, 0);
  EXPECT_EQ(alone.size, 1);
  EXPECT_EQ(alone.host, "a");
}

TEST(World, Torchrun) {
  const World world = world_of(torchrun());
  EXPECT_EQ(world.rank, 3);
  EXPECT_EQ(world.size, 4);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_size, 2);
  EXPECT_EQ(world.node_rank, 1);
  EXPECT_EQ(world.nodes, 2);
  EXPECT_EQ(world.store, (Endpoint{"10.0.0.1", 29400}));
  EXPECT_EQ(world.store_host, StoreHost::kAgent);
  EXPECT_EQ(world.source, "torchrun");
  EXPECT_EQ(world.job, "torchrun/job-7/2");
}

TEST(World, TorchrunWithoutAgentStoreMeetsAtRankZero) {
  EXPECT_EQ(world_of(with(torchrun(), {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).store_host,
            StoreHost::kRankZero);
}

TEST(World, OwnLauncherUsesTheSameVariables) {
  const World world = world_of(with(torchrun(), {{"TROIKA_LAUNCHER_PID", "12"}}));
  EXPECT_EQ(world.source, "troika");
  EXPECT_EQ(world.store_host, StoreHost::kLauncher);
}

TEST(World, KubernetesSaysNothingOfTheHost) {
  const World world = world_of(kubernetes());
  EXPECT_EQ(world.rank, 1);
  EXPECT_EQ(world.size, 2);
  EXPECT_FALSE(world.located());
  EXPECT_EQ(world.store, (Endpoint{"job-master-0", 23456}));
  EXPECT_EQ(world.store_host, StoreHost::kRankZero);
}

// Rank 0 then opens the store's port for this host alone.
TEST(World, ReachesAStoreOfRanksOfOneHostOnLoopback) {
  const Environment::Variables one_node = {{"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "4"}};
  const Environment::Variables own_store = {{"TORCHELASTIC_USE_AGENT_STORE", "False"}};
  EXPECT_EQ(world_of(with(with(torchrun(), one_node), own_store)).store,
            (Endpoint{"127.0.0.1", 29400}));
  EXPECT_EQ(world_of(with(torchrun(), own_store)).store.host, "10.0.0.1");  // two nodes
  EXPECT_EQ(world_of(with(torchrun(), one_node)).store.host, "10.0.0.1");   // the agent keeps it
  EXPECT_EQ(world_of(with(slurm_step(), {{"SLURM_STEP_NUM_NODES", "1"},
                                         {"SLURM_NODEID", "0"},
                                         {"SLURM_STEP_TASKS_PER_NODE", "3"},
                                         {"MASTER_ADDR", "10.0.0.1"}}))
                .store.host,
            "127.0.0.1");
}

TEST(World, SlurmStep) {
  const World world = world_of(slurm_step());
  EXPECT_EQ(world.rank, 2);
  EXPECT_EQ(world.size, 3);
  EXPECT_EQ(world.local_rank, 0);
  EXPECT_EQ(world.local_size, 1);
  EXPECT_EQ(world.node_rank, 1);
  EXPECT_EQ(world.nodes, 2);
  EXPECT_EQ(world.store.host, "n1");
  EXPECT_GE(world.store.port, 20000);
  EXPECT_LT(world.store.port, 30000);
  EXPECT_EQ(world.source, "slurm");
  EXPECT_NE(world.store.port, world_of(with(slurm_step(), {{"SLURM_STEP_ID", "1"}})).store.port);
}

TEST(World, SlurmTakesTheRendezvousThatTheUserNames) {
  const World world =
      world_of(with(slurm_step(), {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1234"}}));
  EXPECT_EQ(world.store, (Endpoint{"10.0.0.1", 1234}));
}

TEST(World, SlurmOnOneNodeStaysOnIt) {
  const World world = world_of(with(slurm_step(), {{"SLURM_STEP_NUM_NODES", "1"},
                                                   {"SLURM_NODEID", "0"},
                                                   {"SLURM_STEP_TASKS_PER_NODE", "3"},
                                                   {"SLURM_LOCALID", "2"}}));
  EXPECT_EQ(world.store.host, "127.0.0.1");
  EXPECT_EQ(world.local_rank, 2);
  EXPECT_EQ(world.local_size, 3);
}

TEST(World, SlurmNodesThatOnlySlurmKnows) {
  // srun's host stands in, where rank 0 can tell that it is its own.
  const auto rank_zero = with(slurm_step(), {{"SLURM_PROCID", "0"}});
  EXPECT_EQ(world_from_environment(environment_of(rank_zero, "nobody"))->store.host, "127.0.0.1");
  EXPECT_THAT(refusal(environment_of(rank_zero, "nobody", "10.9.9.9")), HasSubstr("host 'n1'"));
  EXPECT_EQ(world_from_environment(environment_of(slurm_step(), "nobody", "10.9.9.9"))->store.host,
            "127.0.0.1");
}

TEST(World, OnlyATaskOfAStepIsASlurmRank) {
  EXPECT_FALSE(world_from_environment(environment_of(slurm_batch())).has_value());
  for (const char* special : {"4294967290", "4294967291", "4294967292", "batch", "extern"}) {
    EXPECT_FALSE(
        world_from_environment(environment_of(with(slurm_batch(), {{"SLURM_STEP_ID", special}})))
            .has_value())
        << special;
  }
}

TEST(World, MpiDaemonsInASlurmStepAreNotTheRanks) {
  auto variables = with(slurm_step(), open_mpi());
  variables["SLURM_PROCID"] = "0";
  const World world = world_of(variables);
  EXPECT_EQ(world.source, "mpi");
  EXPECT_EQ(world.rank, 1);
  EXPECT_EQ(world.size, 2);
  EXPECT_EQ(world_of(with(slurm_step(), mpich())).source, "mpi");
}

TEST(World, OpenMpiOnOneHost) {
  const World world = world_of(open_mpi());
  EXPECT_EQ(world.rank, 1);
  EXPECT_EQ(world.size, 2);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_size, 2);
  EXPECT_EQ(world.nodes, 1);
  EXPECT_EQ(world.store, (Endpoint{"127.0.0.1", port_of_job("mpi/1308819457")}));
  EXPECT_EQ(world.source, "mpi");
}

TEST(World, MpichOnOneHostIsNamedByItsProxy) {
  const World world = world_of(mpich());
  EXPECT_EQ(world.rank, 0);
  EXPECT_EQ(world.size, 2);
  EXPECT_EQ(world.job, "mpi/socket-6");
  EXPECT_EQ(world.store, (Endpoint{"127.0.0.1", port_of_job(world.job)}));
}

TEST(World, MpiOnSeveralHostsNeedsAnAddress) {
  const auto spread =
      with(open_mpi(), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}});
  EXPECT_THAT(refusal(spread), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_EQ(world_of(with(spread, {{"MASTER_ADDR", "n2"}})).store.host, "n2");
  // Inside a Slurm allocation its list of nodes says it.
  EXPECT_EQ(world_of(with(slurm_batch(), spread)).store.host, "n1");
}

TEST(World, PrecedenceIsTorchrunSlurmMpi) {
  const auto all = with(with(open_mpi(), slurm_step()), torchrun());
  EXPECT_EQ(world_of(all).source, "torchrun");
  // srun starts MPI programs itself: the ranks have PMI's variables, but not mpirun's.
  EXPECT_EQ(world_of(with(slurm_step(), {{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}})).source, "slurm");
}

struct BadEnvironment {
  const char* name;
  Environment::Variables variables;
  const char* message;
};

class WorldRefuses : public ::testing::TestWithParam<BadEnvironment> {};

TEST_P(WorldRefuses, NamingTheVariable) {
  EXPECT_THAT(refusal(GetParam().variables), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Environments, WorldRefuses,
    ::testing::Values(
        BadEnvironment{"NotANumber", with(torchrun(), {{"RANK", "abc"}}), "RANK='abc'"},
        BadEnvironment{"Negative", with(torchrun(), {{"RANK", "-1"}}), "RANK='-1'"},
        BadEnvironment{"Overflow", with(torchrun(), {{"WORLD_SIZE", "99999999999"}}),
                       "WORLD_SIZE="},
        BadEnvironment{"RankTooHigh", with(torchrun(), {{"RANK", "4"}}),
                       "RANK=4 is not below WORLD_SIZE=4"},
        BadEnvironment{"NoSize", {{"RANK", "0"}}, "RANK is set, but WORLD_SIZE is not"},
        BadEnvironment{"NoRank", {{"WORLD_SIZE", "2"}}, "WORLD_SIZE is set, but RANK is not"},
        BadEnvironment{"NoAddress",
                       {{"RANK", "0"}, {"WORLD_SIZE", "2"}},
                       "RANK is set, but MASTER_ADDR is not"},
        BadEnvironment{"ZeroSize", {{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE=0"},
        BadEnvironment{"ServicePort", with(torchrun(), {{"MASTER_PORT", "tcp://10.0.0.9:6379"}}),
                       "MASTER_PORT"},
        BadEnvironment{"LocalRank", with(torchrun(), {{"LOCAL_RANK", "2"}}), "LOCAL_RANK=2"},
        BadEnvironment{"SlurmRank", with(slurm_step(), {{"SLURM_PROCID", "3"}}), "SLURM_PROCID=3"},
        BadEnvironment{"SlurmTasks", with(slurm_step(), {{"SLURM_STEP_TASKS_PER_NODE", "2(y"}}),
                       "SLURM_STEP_TASKS_PER_NODE"},
        BadEnvironment{"SlurmList", with(slurm_step(), {{"SLURM_STEP_NODELIST", "n[1-"}}),
                       "SLURM_STEP_NODELIST"},
        BadEnvironment{"MpiRank", with(open_mpi(), {{"OMPI_COMM_WORLD_RANK", "2"}}),
                       "OMPI_COMM_WORLD_RANK=2"},
        BadEnvironment{"PmiSize", {{"PMI_RANK", "0"}}, "PMI_RANK is set, but PMI_SIZE is not"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace troika
