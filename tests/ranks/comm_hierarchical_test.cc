// What is particular to the engine across hosts: who is told what when something goes wrong on one
// of them, and when `auto` takes it. The hosts are pretended; launch_nodes.py has separate ones.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <troika/base/error.h>

#include "ranks/comm_failures.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

RankOptions in_turn() {
  return {.pretend = Pretend::kTwoHostsInTurn};
}

const std::string& value(const std::vector<RankResult>& results, int rank,
                         const std::string& name) {
  return results[static_cast<std::size_t>(rank)].values.at(name);
}

// Ranks 1 and 3 share a host: a rank that waits on the other one hears which is missing all the
// same.
TEST(AcrossHosts, NameTheRankThatDoesNotEnter) {
  const auto results = expect_ranks("does_not_enter", 5, in_turn());
  for (const int rank : {0, 2, 3, 4}) {
    EXPECT_THAT(value(results, rank, "error"), AnyOf("DeadlineError", "PeerError"));
    EXPECT_THAT(value(results, rank, "error message"),
                AllOf(HasSubstr("all_reduce 'gradients' on axis data"), HasSubstr("rank 1 (host "),
                      HasSubstr("has not entered all_reduce 'gradients'")))
        << rank;
    EXPECT_LT(std::stod(value(results, rank, "error seconds")), kSoon);
    EXPECT_EQ(value(results, rank, "afterwards"), "PeerError");
    EXPECT_THAT(value(results, rank, "afterwards message"),
                HasSubstr("barrier 'never' on axis data: "));
  }
  EXPECT_EQ(value(results, 3, "error"), "DeadlineError");
}

TEST(AcrossHosts, NameTheRankThatIsKilled) {
  const auto results = run_ranks("is_killed", 5, in_turn());
  EXPECT_EQ(results[1].signal, SIGKILL);
  for (const int rank : {0, 2, 3, 4}) {
    ASSERT_TRUE(results[static_cast<std::size_t>(rank)].ok())
        << "rank " << rank << ": " << results[static_cast<std::size_t>(rank)].account();
    EXPECT_EQ(value(results, rank, "error"), "PeerError");
    EXPECT_THAT(value(results, rank, "error message"),
                AllOf(HasSubstr("lost rank 1 (host "),
                      AnyOf(HasSubstr("); it is in all_reduce 'gradients' (axis data) for "),
                            HasSubstr("); it was in all_reduce 'gradients' (axis data) when it "),
                            HasSubstr("); it last completed all_reduce "))))
        << rank;
    EXPECT_LT(std::stod(value(results, rank, "error seconds")), kSoon);
  }
}

TEST(AcrossHosts, NameTheRankThatIsStopped) {
  const auto results = expect_ranks("is_stopped", 5, in_turn());
  int told = 0;
  for (const int rank : {0, 2, 3, 4}) {
    const std::string& message = value(results, rank, "error message");
    EXPECT_THAT(message, AllOf(HasSubstr("rank 1 (host "),
                               HasSubstr("has not entered all_reduce 'gradients'")))
        << rank;
    told += message.find("is stopped (SIGSTOP") != std::string::npos;
    EXPECT_LT(std::stod(value(results, rank, "error seconds")), kSoon);
  }
  EXPECT_GE(told, 1);
}

TEST(AcrossHosts, NameTheRankInAnEndlessLoop) {
  const auto results = expect_ranks("loops", 3, in_turn());
  EXPECT_THAT(
      value(results, 0, "error message"),
      AllOf(HasSubstr("rank 1 (host "), HasSubstr("has not entered barrier 'together'"),
            HasSubstr("it has begun no operation"), HasSubstr("is computing: an endless loop")));
}

// Every rank hears of both: on its own host at once, between hosts at the deadline.
TEST(AcrossHosts, NameTheRankInAnotherOperation) {
  RankOptions options = in_turn();
  options.arguments["what"] = "operation";
  for (const RankResult& result : expect_ranks("is_elsewhere", 5, options)) {
    EXPECT_THAT(result.values.at("error message"),
                AllOf(HasSubstr("all_reduce 'gradients'"), HasSubstr("broadcast 'weights'"),
                      HasSubstr("operation 2 on axis data"),
                      HasSubstr("all ranks must call the same operations")));
  }
}

TEST(AcrossHosts, NameTheRankWithAnotherShape) {
  RankOptions options = in_turn();
  options.arguments["what"] = "shape";
  for (const RankResult& result : expect_ranks("is_elsewhere", 5, options)) {
    EXPECT_THAT(
        result.values.at("error message"),
        AllOf(HasSubstr("all_reduce 'gradients'"), HasSubstr("9 x fp64"), HasSubstr("10 x fp32")));
  }
}

TEST(AcrossHosts, Abort) {
  const auto results = expect_ranks("aborts", 3, in_turn());
  for (const int rank : {0, 2}) {
    for (const std::string name : {"first", "second", "third"}) {
      EXPECT_EQ(value(results, rank, name), "PeerError");
      EXPECT_THAT(value(results, rank, name + " message"),
                  AllOf(HasSubstr(name), HasSubstr("the loss is not finite")));
    }
  }
}

TEST(AcrossHosts, AbortOfOwnOperations) {
  const auto results = expect_ranks("aborts_itself", 3, in_turn());
  EXPECT_EQ(value(results, 0, "error"), "PeerError");
  EXPECT_THAT(value(results, 0, "error message"), HasSubstr("rank 5 died on host x"));
  EXPECT_LT(std::stod(value(results, 0, "error seconds")), kSoon);
}

TEST(AcrossHosts, ADeadlineBehindAnOperationThatHangs) {
  const auto results = expect_ranks("queues", 3, in_turn());
  EXPECT_THAT(value(results, 0, "second"), AnyOf("DeadlineError", "PeerError"));
  EXPECT_LT(std::stod(value(results, 0, "second seconds")), kSoon);
  EXPECT_LT(std::stod(value(results, 0, "first seconds")), kSoon);
}

TEST(AcrossHosts, RanksThatDisagree) {
  for (const RankResult& result : expect_ranks("disagrees", 4, in_turn())) {
    EXPECT_THAT(result.values.at("error"), AnyOf("DeadlineError", "PeerError"));
    EXPECT_LT(std::stod(result.values.at("error seconds")), kSoon);
  }
}

TEST(AcrossHosts, EndAtDifferentTimes) {
  for (const RankResult& result : expect_ranks("ends_early", 4, in_turn())) {
    EXPECT_EQ(result.output, "");
  }
}

RANK_FUNCTION(chooses_an_engine) {
  EXPECT_EQ(rank.group().engine_name(), rank.argument("name"));
}

TEST(AcrossHosts, AutoTakesWhatFits) {
  const auto expect = [](int ranks, Pretend pretend, EngineOptions::ReductionOrder reduction_order,
                         const char* name) {
    expect_ranks(
        "chooses_an_engine", ranks,
        {.arguments = {{"name", name}}, .reduction_order = reduction_order, .pretend = pretend});
  };
  using enum EngineOptions::ReductionOrder;
  expect(2, Pretend::kNothing, kFastest, "shm");  // found out by trying
  expect(2, Pretend::kTwoHostsInTurn, kFastest, "gloo");
  expect(3, Pretend::kTwoHostsInTurn, kFastest, "shm+gloo");
  expect(3, Pretend::kTwoHostsInTurn, kInOrder, "gloo");
}

}  // namespace
}  // namespace troika::test
