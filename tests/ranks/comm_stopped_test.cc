// A rank that is stopped after it has entered an operation: those who wait for it are told that it
// has, and what lets it go on.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <troika/base/error.h>
#include <troika/observe/machine.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "ranks/comm_failures.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

// The others enter once rank 1 has entered and is stopped. By then it has nothing of theirs, and a
// part of the sum is for it to reduce, so that the sum ends well on no engine, however far the
// threads of rank 1 have come. In ordinary memory, and too large for a slot: what lies in a slot
// is there for the others to reduce.
RANK_FUNCTION(stops_inside) {
  const Group group = watched_group(rank);
  const at::Tensor tensor = at::ones({std::stol(rank.argument("elements"))});
  group.barrier(Rank::call("warm-up")).wait();
  if (rank.index() == 1) {
    rank.report("pid", std::to_string(getpid()));
    rank.store().set("pid", std::to_string(getpid()));
    const Work work =
        group.all_reduce(tensor, ReduceOp::kSum, Rank::call("gradients", Seconds(60)));
    raise(SIGSTOP);  // until all others have their errors
    report_error(rank, "late", [&] { work.wait(); });
    return;
  }
  const int pid = pid_once_stopped(rank);
  report_error(rank, "error", [&] {
    group.all_reduce(tensor, ReduceOp::kSum, Rank::call("gradients", Seconds(1))).wait();
  });
  if (rank.store().add("told", 1) == rank.size() - 1) kill(pid, SIGCONT);
}

// What all ranks but 1 have in their messages; `waited` is how it goes on about who waits.
void expect_told(const std::vector<RankResult>& results, const std::string& waited) {
  const auto& stopped = results[1].values;
  const std::string& pid = stopped.at("pid");
  int deadlines = 0;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    if (rank == 1) continue;
    const auto& values = results[rank].values;
    // The first rank to fail tells the others.
    EXPECT_THAT(values.at("error"), AnyOf("DeadlineError", "PeerError")) << "rank " << rank;
    deadlines += values.at("error") == "DeadlineError" ? 1 : 0;
    EXPECT_THAT(values.at("error message"),
                AllOf(HasSubstr("rank 1 (host " + host_name() + ", pid " + pid +
                                ") has entered all_reduce 'gradients' on axis data and stopped "
                                "there; " +
                                waited),
                      HasSubstr(" | process " + pid +
                                " is stopped (SIGSTOP, a debugger, a frozen container): kill "
                                "-CONT " +
                                pid + " lets it go on")))
        << "rank " << rank;
    EXPECT_LT(std::stod(values.at("error seconds")), kSoon) << "rank " << rank;
  }
  EXPECT_GE(deadlines, 1);
  EXPECT_EQ(stopped.at("late"), "PeerError");
  EXPECT_THAT(stopped.at("late message"), HasSubstr(" gave up: "));
  EXPECT_LT(std::stod(stopped.at("late seconds")), kSoon);
}

class StoppedInside : public testing::TestWithParam<TestedEngine> {};

TEST_P(StoppedInside, IsToldToThoseWhoWait) {
  RankOptions options = GetParam().options;
  options.arguments["elements"] = std::to_string(std::int64_t{16} << 20);  // 64 MB
  expect_told(expect_ranks("stops_inside", 3, options), "ranks 0 and 2 have waited 1.0 s");
}

INSTANTIATE_TEST_SUITE_P(Engines, StoppedInside, testing::ValuesIn(engines_of_one_part()),
                         [](const auto& info) { return info.param.name; });

// Rank 3 waits for rank 1 in shared memory, rank 0 between hosts, ranks 2 and 4 for these. Not 64
// MB: here the first host reduces all there is before it waits, and that must not take a second.
TEST(StoppedInsideAcrossHosts, IsToldToThoseWhoWait) {
  const RankOptions options{.arguments = {{"elements", "1000000"}},
                            .pretend = Pretend::kTwoHostsInTurn};
  expect_told(expect_ranks("stops_inside", 5, options), "rank");
}

}  // namespace
}  // namespace troika::test
