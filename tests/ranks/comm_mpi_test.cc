// What is particular to the engine mpi: it needs a real mpirun, whose job ends as a whole.
#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <troika/base/error.h>
#include <troika/comm/mpi/bootstrap.h>
#include <troika/comm/mpi/library.h>
#include <troika/rendezvous/rendezvous.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>

#include "ranks/own_mpi.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Mpi : public testing::TestWithParam<TestedEngine> {
 protected:
  static RankOptions options() { return GetParam().options; }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Mpi);

// One dead rank ends an MPI job: mpirun ends the others, or they hear of it themselves.
TEST_P(Mpi, ADeadRankEndsTheJob) {
  const auto start = Clock::now();
  for (const RankResult& result : run_ranks("is_killed", 3, options())) {
    EXPECT_FALSE(result.timed_out);
    if (result.ok()) {
      EXPECT_EQ(result.values.at("error"), "PeerError");
    }
  }
  EXPECT_LT(Seconds(Clock::now() - start).count(), 30);
}

TEST_P(Mpi, NamesTheRankThatIsMissing) {
  const auto results = expect_ranks("does_not_enter", 3, options());
  int deadlines = 0;
  for (const int rank : {0, 2}) {
    const auto& values = results[static_cast<std::size_t>(rank)].values;
    deadlines += values.at("error") == "DeadlineError" ? 1 : 0;
    EXPECT_THAT(values.at("error message"),
                AllOf(HasSubstr("rank 1 (host "), HasSubstr("has not entered all_reduce")));
  }
  EXPECT_GE(deadlines, 1);
}

RANK_FUNCTION(uses_mpi_between_hosts) {
  const Group group = rank.group();
  EXPECT_EQ(group.engine_name(), "shm+mpi");
  at::Tensor tensor = at::full({100'003}, rank.index() + 1.0);
  group.all_reduce(tensor, ReduceOp::kSum, Rank::call("sum")).wait();
  EXPECT_TRUE(at::all(tensor == rank.size() * (rank.size() + 1) / 2.0).item<bool>());
  group.barrier(Rank::call("end")).wait();
}

TEST_P(Mpi, IsTakenBetweenHostsUnderMpirun) {
  RankOptions options = Mpi::options();
  options.engine = "auto";
  options.pretend = Pretend::kTwoHostsInTurn;
  expect_ranks("uses_mpi_between_hosts", 4, options);
}

// Ranks 1 and 2 leave a group that rank 0 has aborted without having used it, and make one of their
// own, for which MPI may take what it knew the other by: what rank 0 said is not about that one.
RANK_FUNCTION(goes_on_without_one) {
  const Group all = rank.group();
  for (std::uint64_t generation = 1; generation <= 3; ++generation) {
    EngineOptions options = rank.options();
    options.generation = generation;
    {
      const Group three = make_group("data", all.ranks(), rank.index(), options);
      const std::string aborted = "aborted " + std::to_string(generation);
      if (rank.index() == 0) {
        three.abort("the loss is not finite");
        rank.store().set(aborted, "");
      }
      (void)rank.store().get(aborted, Deadline::in(Seconds(30)));
    }
    if (rank.index() == 0) continue;
    const Group two = make_group("pair", {1, 2}, rank.index() - 1, options);
    const at::Tensor tensor = at::ones({3});
    two.all_reduce(tensor, ReduceOp::kSum, Rank::call("of two")).wait();
    EXPECT_TRUE(at::all(tensor == 2).item<bool>());
    two.barrier(Rank::call("end")).wait();
  }
  rank.wait_for_all("end");
}

TEST_P(Mpi, WhatAnAborterHasSaidIsOfItsGroupAlone) {
  expect_ranks("goes_on_without_one", 3, options());
}

// MPI sends only while it is called. Open MPI calls a long message sent when the word that ends it
// is still to leave, as it must wait here now and then: the socket is kept full. The sender then
// waits elsewhere, for the receiver.
RANK_FUNCTION(waits_elsewhere) {
  const std::map<const char*, const char*> settings = {{"OMPI_MCA_pml", "ob1"},
                                                       {"OMPI_MCA_btl", "tcp,self"},
                                                       {"OMPI_MCA_btl_tcp_sndbuf", "4096"},
                                                       {"OMPI_MCA_btl_tcp_rcvbuf", "4096"},
                                                       {"UCX_TLS", "tcp,self"}};
  for (const auto& [name, value] : settings) setenv(name, value, 1);
  const Group group = rank.group();
  const bool sends = rank.index() == 0;
  for (int trial = 0; trial < 60; ++trial) {
    const at::Tensor tensor = at::ones({20'000 + 3'337 * trial});
    const Transfer transfer{sends ? Transfer::Direction::kSend : Transfer::Direction::kReceive,
                            1 - rank.index(), tensor};
    rank.wait_for_all("start " + std::to_string(trial));
    group.exchange({&transfer, 1}, Rank::call("news", Seconds(10))).wait();
    rank.wait_for_all("received " + std::to_string(trial));
  }
  group.barrier(Rank::call("end")).wait();
}

TEST_P(Mpi, SendsWhileNobodyWaits) {
  expect_ranks("waits_elsewhere", 2, options());
}

INSTANTIATE_TEST_SUITE_P(Flavours, Mpi, testing::ValuesIn(tested_mpi_engines()),
                         [](const auto& info) { return info.param.name; });

// An MPI that is left out of all of these tests is left out in the open.
class MpiFlavour : public testing::TestWithParam<const char*> {};

TEST_P(MpiFlavour, IsTested) {
  const std::string flavour = GetParam();
  const auto plugins = mpi::available_plugins();
  if (std::ranges::find(plugins, flavour) == plugins.end()) {
    GTEST_SKIP() << "nothing is tested with " << flavour
                 << ": its plug-in was not built, as cmake says, since its headers were not found";
  }
  const auto engines = tested_mpi_engines();
  if (std::ranges::find(engines, "mpi_" + flavour, &TestedEngine::name) == engines.end()) {
    GTEST_SKIP() << "nothing is tested with " << flavour << ": there is no mpirun." << flavour;
  }
}

INSTANTIATE_TEST_SUITE_P(Flavours, MpiFlavour, testing::Values("openmpi", "mpich"),
                         [](const auto& info) { return info.param; });

// Whether only this host reaches a socket.
bool is_on_loopback(const ListeningSocket& listening) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(listening.fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return false;
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
  return address.ss_family == AF_INET && v4.sin_addr.s_addr == htonl(INADDR_LOOPBACK);
}

RANK_FUNCTION(owns_its_communicator) {
  const OwnMpi mpi;
  const World world = world_of_communicator(mpi.world(), Deadline::in(Seconds(30)));
  EXPECT_EQ(world.rank, rank.index());
  EXPECT_EQ(world.size, rank.size());
  EXPECT_EQ(world.source, "mpi");
  EXPECT_EQ(world.listening != nullptr, rank.index() == 0);
  if (world.listening) {
    EXPECT_TRUE(is_on_loopback(*world.listening));
  }
  Rendezvous rendezvous = Rendezvous::join(world, {"1.0", ""}, Deadline::in(Seconds(30)));
  std::vector<int> ranks;
  for (int each = 0; each < rank.size(); ++each) ranks.push_back(each);
  EngineOptions options;
  options.store = &rendezvous.store();
  {
    const Group group = make_group("data", ranks, rank.index(), options);
    at::Tensor tensor = at::ones({1000});
    group.all_reduce(tensor, ReduceOp::kSum, Rank::call("sum")).wait();
    EXPECT_TRUE(at::all(tensor == rank.size()).item<bool>());
  }
  options.engine = "mpi";
  try {
    (void)make_group("data", ranks, rank.index(), options);
    ADD_FAILURE() << "the engine mpi needs all threads";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("without MPI_THREAD_MULTIPLE"));
  }
  EXPECT_THROW((void)world_of_communicator(-77, Deadline::in(Seconds(5))), UsageError);
  rendezvous.leave(Deadline::in(Seconds(30)));
}

TEST_P(Mpi, OpensASessionOnAProgramsCommunicator) {
  expect_ranks("owns_its_communicator", 3, options());
}

RANK_FUNCTION(asks_for_mpi_without_mpirun) {
  setenv("TROIKA_MPI", "openmpi", 1);  // each process is then an MPI job of its own
  try {
    (void)rank.group();
    ADD_FAILURE() << "no error";
  } catch (const UsageError& error) {
    rank.report("error", std::string(error.what()) + " | " + error.hint());
  }
}

TEST(MpiWithoutMpirun, SaysSo) {
  const auto facts = list_engines();
  const auto mpi = std::ranges::find(facts, "mpi", &EngineFacts::name);
  ASSERT_NE(mpi, facts.end());
  EXPECT_FALSE(mpi->usable);
  EXPECT_THROW((void)resolve_engine("mpi"), UsageError);
  const auto plugins = mpi::available_plugins();
  if (std::ranges::find(plugins, "openmpi") == plugins.end()) {
    GTEST_SKIP() << "there is no plug-in for Open MPI";
  }
  EXPECT_THAT(mpi->reason, HasSubstr("not started by mpirun; start it with mpirun -n N"));
  const auto results = expect_ranks("asks_for_mpi_without_mpirun", 2, {.engine = "mpi"});
  for (const RankResult& result : results) {
    EXPECT_THAT(result.values.at("error"),
                AllOf(HasSubstr("are not in the same MPI job: rank 0 of 1, and rank 0 of 1"),
                      HasSubstr("start all ranks with one mpirun")));
  }
}

}  // namespace
}  // namespace troika::test
