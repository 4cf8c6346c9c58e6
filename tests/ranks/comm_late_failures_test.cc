// Failures that are not there yet when they are asked for: those of operations that no thread
// waits for, but whose caller asks from time to time, and reasons that others find later.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <troika/base/error.h>
#include <troika/observe/machine.h>
#include <troika/observe/recorder.h>

#include <exception>
#include <optional>
#include <string>
#include <thread>

#include "ranks/comm_failures.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Asks whether it is done, and never waits before it is.
void poll(const Work& work) {
  const Deadline enough = Deadline::in(Seconds(25));
  while (!work.done()) {
    if (enough.passed()) throw InternalError("it is never done");
    std::this_thread::yield();
  }
  work.wait();
}

RANK_FUNCTION(only_asks) {
  const Group group = watched_group(rank);
  group.barrier(Rank::call("warm-up")).wait();
  const std::string end = rank.argument("end");
  if (rank.index() == 1) {
    (void)rank.store().get("asking", Deadline::in(Seconds(30)));
    if (end == "exit") raise(SIGKILL);
    (void)rank.store().get("ended", Deadline::in(Seconds(30)));
    return;
  }
  at::Tensor tensor = at::ones({4});
  const Call call = Rank::call("gradients", Seconds(end == "deadline" ? 0.5 : 60));
  const Transfer receive{Transfer::Direction::kReceive, 1, tensor};
  const Work work = rank.argument("what") == "exchange"
                        ? group.exchange({&receive, 1}, call)
                        : group.all_reduce(tensor, ReduceOp::kSum, call);
  rank.store().set("asking", "");
  std::thread watchdog([&] {
    if (end == "abort") group.abort("the loss is not finite");
  });
  bool told = false;
  work.on_done([&told](const std::exception_ptr& error) { told = error != nullptr; });
  report_error(rank, "error", [&] { poll(work); });
  watchdog.join();
  EXPECT_TRUE(told);
  rank.store().set("ended", "");
}

RANK_FUNCTION(sends_less_than_is_asked_for) {
  const Group group = watched_group(rank);
  group.barrier(Rank::call("warm-up")).wait();
  const auto direction =
      rank.index() == 1 ? Transfer::Direction::kSend : Transfer::Direction::kReceive;
  const Transfer transfer{direction, 1 - rank.index(), at::ones({10 - rank.index()})};
  report_error(rank, "error", [&] {
    poll(group.exchange({&transfer, 1}, Rank::call("rows", Seconds(2))));
  });
  rank.wait_for_all("both have seen it");
}

// Rank 0 waits for rank 1, which waits for rank 2 on another axis, and gives up later.
RANK_FUNCTION(waits_for_one_that_waits) {
  const Group all = rank.group();
  EngineOptions options = rank.options();
  options.recorders = rank.folder();
  options.observers.recorder =
      Recorder::create(recorder_path(rank.folder(), rank.index()), rank.index(), "here");
  std::optional<Group> first, second;
  if (rank.index() < 2) first = make_group("first", {0, 1}, rank.index(), options);
  if (rank.index() > 0) second = make_group("second", {1, 2}, rank.index() - 1, options);
  rank.wait_for_all("connected");
  if (rank.index() == 0) {
    (void)rank.store().get("rank 1 waits", Deadline::in(Seconds(30)));
    report_error(rank, "error",
                 [&] { first->barrier(Rank::call("together", Seconds(0.6))).wait(); });
  } else if (rank.index() == 1) {
    const Work work = second->barrier(Rank::call("together", Seconds(1)));
    rank.store().set("rank 1 waits", "");
    report_error(rank, "error", [&] { work.wait(); });
  }
  rank.wait_for_all("all have seen it");
}

// Three sums of the same kind and shape, of which rank 1 does not make the second.
RANK_FUNCTION(leaves_one_out) {
  const Group group = watched_group(rank);
  at::Tensor tensor = at::ones({4});
  const auto sum = [&](std::string_view label, Seconds timeout = Seconds(30)) {
    group.all_reduce(tensor, ReduceOp::kSum, Rank::call(label, timeout)).wait();
  };
  sum("loss");
  if (rank.index() == 1) {
    sum("gradients");
    (void)rank.store().get("told", Deadline::in(Seconds(30)));
    return;
  }
  sum("norm");
  report_error(rank, "error", [&] { sum("gradients", Seconds(1)); });
  rank.store().set("told", "");
}

class FailuresFoundLate : public testing::TestWithParam<TestedEngine> {};

TEST_P(FailuresFoundLate, AreToldToThoseWhoOnlyAsk) {
  for (const std::string what : {"all_reduce", "exchange"}) {
    for (const std::string end : {"deadline", "abort", "exit"}) {
      if (end == "exit" && !GetParam().options.mpirun.empty()) continue;  // mpirun ends the rest
      RankOptions options = GetParam().options;
      options.arguments = {{"what", what}, {"end", end}};
      const RankResult result = run_ranks("only_asks", 2, options)[0];
      ASSERT_TRUE(result.ok()) << what << ", " << end << ": " << result.output;
      EXPECT_EQ(result.values.at("error"), end == "deadline" ? "DeadlineError" : "PeerError");
      EXPECT_THAT(result.values.at("error message"), HasSubstr(what + " 'gradients'"));
      EXPECT_LT(std::stod(result.values.at("error seconds")), kSoon) << what << ", " << end;
    }
  }
}

// Over Gloo a message may be shorter than what is asked for, and no rank notices.
TEST(SharedMemoryFailures, AMessageOfAnotherSizeIsToldToThoseWhoOnlyAsk) {
  const auto results = expect_ranks("sends_less_than_is_asked_for", 2, {.engine = "shm"});
  EXPECT_EQ(results[0].values.at("error"), "PeerError");
  EXPECT_THAT(results[0].values.at("error message"),
              AllOf(HasSubstr("exchange 'rows' on axis data: rank 1 (host "), HasSubstr(" 36 B "),
                    HasSubstr(" 40 B ")));
}

TEST_P(FailuresFoundLate, AnOperationThatARankHasLeftOut) {
  const auto results = expect_ranks("leaves_one_out", 2, GetParam().options);
  EXPECT_THAT(results[0].values.at("error message"),
              HasSubstr("its operation 2 on axis data was all_reduce 'gradients', where rank 0 was "
                        "in all_reduce 'norm'"));
}

TEST_P(FailuresFoundLate, AReasonThatComesLater) {
  const auto results = expect_ranks("waits_for_one_that_waits", 3, GetParam().options);
  EXPECT_THAT(results[1].values.at("error message"),
              HasSubstr("rank 2 (host " + host_name() + ", pid "));
  EXPECT_EQ(results[0].values.at("error"), "PeerError");
  EXPECT_THAT(results[0].values.at("error message"),
              AllOf(HasSubstr("barrier 'together' on axis first: rank 1 (host "),
                    HasSubstr(" gave up: "), HasSubstr("rank 2 (host "),
                    HasSubstr("has not entered barrier 'together' on axis second")));
}

INSTANTIATE_TEST_SUITE_P(Engines, FailuresFoundLate, testing::ValuesIn(engines_of_one_part()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace troika::test
