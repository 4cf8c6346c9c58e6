// What happens when something goes wrong in a group: who finds out, how soon, and in which words.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/units.h>
#include <troika/observe/machine.h>
#include <troika/observe/recorder.h>
#include <troika/observe/saved_error.h>

#include <array>
#include <atomic>
#include <memory>
#include <numeric>
#include <thread>

#include "ranks/comm_failures.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

RANK_FUNCTION(does_not_enter) {
  const Group group = watched_group(rank);
  at::Tensor tensor = at::ones({1000});
  group.all_reduce(tensor, ReduceOp::kSum, Rank::call("warm-up")).wait();
  if (rank.index() == 1) {
    (void)rank.store().get("others are done", Deadline::in(Seconds(30)));
    // It comes too late, and hears why.
    report_error(rank, "late",
                 [&] { group.all_reduce(tensor, ReduceOp::kSum, Rank::call("gradients")).wait(); });
    return;
  }
  report_error(rank, "error", [&] {
    group.all_reduce(tensor, ReduceOp::kSum, Rank::call("gradients", Seconds(1))).wait();
  });
  report_error(rank, "afterwards", [&] { group.barrier(Rank::call("never")).wait(); });
  report_error(rank, "a send afterwards", [&] {
    const Transfer send{Transfer::Direction::kSend, 1, tensor};
    group.exchange({&send, 1}, Rank::call("never")).wait();
  });
  if (rank.store().add("done", 1) == rank.size() - 1) rank.store().set("others are done", "");
}

// One that is stopped, and one that computes without end: both are told apart from one that waits.
RANK_FUNCTION(is_stopped) {
  const Group group = watched_group(rank);
  at::Tensor tensor = at::ones({1000});
  group.all_reduce(tensor, ReduceOp::kSum, Rank::call("warm-up")).wait();
  if (rank.index() == 1) {
    rank.store().set("pid", std::to_string(getpid()));
    raise(SIGSTOP);  // until all others have their errors
    return;
  }
  const int pid = pid_once_stopped(rank);
  report_error(rank, "error", [&] {
    group.all_reduce(tensor, ReduceOp::kSum, Rank::call("gradients", Seconds(1))).wait();
  });
  if (rank.store().add("told", 1) == rank.size() - 1) kill(pid, SIGCONT);
}

// Rank 1 is told of itself, by an exchange that others break: that says nothing to those others.
RANK_FUNCTION(hears_of_itself) {
  const Group group = watched_group(rank);
  if (rank.index() == 1) {
    const Transfer receive{Transfer::Direction::kReceive, 0, at::ones({10})};
    const Work work = group.exchange({&receive, 1}, Rank::call("never sent", Seconds(30)));
    rank.store().set("receiving", "");
    report_error(rank, "error", [&] { work.wait(); });
  } else {
    (void)rank.store().get("receiving", Deadline::in(Seconds(30)));
    report_error(rank, "error", [&] { group.barrier(Rank::call("together", Seconds(1))).wait(); });
  }
  rank.wait_for_all("all have seen it");
}

RANK_FUNCTION(loops) {
  const Group group = watched_group(rank);
  if (rank.index() == 1) {
    std::atomic<bool> done = false;
    std::thread end([&done, store = rank.store().clone()]() mutable {
      (void)store.wait({"done"}, Deadline::in(Seconds(30)));
      done = true;
    });
    rank.store().set("looping", "");
    while (!done) {
    }
    end.join();
    return;
  }
  (void)rank.store().get("looping", Deadline::in(Seconds(10)));
  report_error(rank, "error", [&] { group.barrier(Rank::call("together", Seconds(1))).wait(); });
  rank.store().set("done", "");
}

RANK_FUNCTION(is_elsewhere) {
  const Group group = watched_group(rank);
  at::Tensor tensor = at::ones({10});
  group.all_reduce(tensor, ReduceOp::kSum, Rank::call("warm-up")).wait();
  const Call call = Rank::call("gradients", Seconds(1));
  report_error(rank, "error", [&] {
    if (rank.index() != 1) {
      group.all_reduce(tensor, ReduceOp::kSum, call).wait();
    } else if (rank.argument("what") == "operation") {
      group.broadcast(tensor, 0, Rank::call("weights", Seconds(1))).wait();
    } else {
      at::Tensor other = at::ones({9}, at::kDouble);
      group.all_reduce(other, ReduceOp::kSum, call).wait();
    }
  });
  rank.wait_for_all("all have seen it");
}

RANK_FUNCTION(is_killed) {
  const Group group = watched_group(rank);
  at::Tensor tensor = at::ones({4'000'000});
  group.all_reduce(tensor, ReduceOp::kSum, Rank::call("warm-up")).wait();
  rank.wait_for_all("warm");
  if (rank.index() == 1) {
    // In the middle of a large operation: the peers have entered it too, or are about to.
    const Work work = group.all_reduce(tensor, ReduceOp::kSum, Rank::call("gradients"));
    raise(SIGKILL);
  }
  report_error(rank, "error", [&] {
    while (true) {
      group.all_reduce(tensor, ReduceOp::kSum, Rank::call("gradients", Seconds(30))).wait();
    }
  });
  report_error(rank, "afterwards", [&] { group.barrier(Rank::call("never")).wait(); });
}

RANK_FUNCTION(aborts) {
  const Group group = rank.group();
  at::Tensor tensor = at::ones({1000});
  at::Tensor other = at::ones({1});
  if (rank.index() == 1) {
    (void)rank.store().get("waiting", Deadline::in(Seconds(30)));
    group.abort("the loss is not finite");
    group.abort("a second reason, which nobody hears");
    report_error(rank, "afterwards", [&] { group.barrier(Rank::call("never")).wait(); });
    return;
  }
  const Work first = group.all_reduce(tensor, ReduceOp::kSum, Rank::call("first"));
  const Work second = group.all_reduce(other, ReduceOp::kSum, Rank::call("second"));
  const Transfer receive{Transfer::Direction::kReceive, 1, at::ones({5})};
  const Work third = group.exchange({&receive, 1}, Rank::call("third"));
  rank.store().set("waiting", "");
  report_error(rank, "first", [&] { first.wait(); });
  report_error(rank, "second", [&] { second.wait(); });
  report_error(rank, "third", [&] { third.wait(); });
}

// abort() while another thread of the same process waits.
RANK_FUNCTION(aborts_itself) {
  const Group group = rank.group();
  at::Tensor tensor = at::ones({1});
  if (rank.index() == 1) {
    (void)rank.store().get("ended", Deadline::in(Seconds(30)));
    return;
  }
  const Work work = group.all_reduce(tensor, ReduceOp::kSum, Rank::call("gradients"));
  std::thread watchdog([&] { group.abort("rank 5 died on host x"); });
  report_error(rank, "error", [&] { work.wait(); });
  watchdog.join();
  EXPECT_TRUE(work.done());
  rank.store().set("ended", "");
}

RANK_FUNCTION(disagrees) {
  const Group group = rank.group();
  report_error(rank, "error", [&] {
    if (rank.index() == 0) {
      group.all_reduce(at::ones({1000}), ReduceOp::kSum, Rank::call("one", Seconds(1))).wait();
    } else {
      group.all_reduce(at::ones({999}), ReduceOp::kSum, Rank::call("other", Seconds(1))).wait();
    }
  });
}

// Rank 0 sends less to rank 1 than that expects.
RANK_FUNCTION(sends_too_little) {
  const Group group = watched_group(rank);
  group.barrier(Rank::call("warm-up")).wait();
  const std::int64_t elements = std::stoi(rank.argument("elements"));
  const std::size_t peer = rank.index() == 0 ? 1 : 0;
  std::vector<std::int64_t> sent(2, 2);  // of which two stay here
  sent[peer] = elements;
  std::vector<std::int64_t> expected = sent;
  if (rank.index() == 1) ++expected[peer];
  const at::Tensor input = at::ones({sent[0] + sent[1]});
  const at::Tensor output = at::zeros({expected[0] + expected[1]});
  report_error(rank, "error", [&] {
    group.all_to_all(output, expected, input, sent, Rank::call("tokens", Seconds(2))).wait();
  });
  report_error(rank, "next", [&] { group.barrier(Rank::call("next", Seconds(2))).wait(); });
  rank.wait_for_all("both have seen it");
}

RANK_FUNCTION(does_not_come) {
  if (rank.index() == 1) return;
  report_error(rank, "error", [&] {
    EngineOptions options = rank.options();
    options.rendezvous_timeout = Seconds(1);
    std::vector<int> ranks(static_cast<std::size_t>(rank.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    (void)make_group("data", ranks, rank.index(), options);
  });
}

// A queue in which the first operation hangs does not hold up the deadline of the second.
RANK_FUNCTION(queues) {
  const Group group = watched_group(rank);
  if (rank.index() == 1) {
    (void)rank.store().get("ended", Deadline::in(Seconds(30)));
    return;
  }
  at::Tensor a = at::ones({10}), b = at::ones({10});
  const Work first = group.all_reduce(a, ReduceOp::kSum, Rank::call("first", Seconds(20)));
  const Work second = group.all_reduce(b, ReduceOp::kSum, Rank::call("second", Seconds(0.5)));
  report_error(rank, "second", [&] { second.wait(); });
  report_error(rank, "first", [&] { first.wait(); });
  const auto left = read_saved_error(rank.folder(), rank.index());
  rank.report("left for the launcher", left ? left->failure.message : "nothing");
  rank.store().set("ended", "");
}

// Ranks that end at different times must not take the last bytes from the others.
RANK_FUNCTION(ends_early) {
  at::Tensor tensor = at::ones({3'000'000});
  {
    const Group group = rank.group();
    for (int i = 0; i < 3; ++i) group.broadcast(tensor, i % 2, Rank::call("last")).wait();
  }
  EXPECT_EQ(tensor.sum().item<double>(), 3e6);
}

// Where `until` is "ended", the last rank's process is no more when the others go on.
RANK_FUNCTION(leaves_early) {
  const int last = rank.size() - 1;
  auto group = std::make_unique<Group>(rank.group());
  group->barrier(Rank::call("together")).wait();
  if (rank.index() == last) {
    group.reset();
    rank.store().set("left", std::to_string(getpid()));
    return;
  }
  const pid_t pid = std::stoi(rank.store().get("left", Deadline::in(Seconds(60))));
  if (rank.argument("until") == "ended") {
    const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    pollfd watched{process.get(), POLLIN, 0};
    EXPECT_TRUE(!process.valid() || poll(&watched, 1, 60'000) == 1);
  }
  using enum Transfer::Direction;
  const int peer = 1 - rank.index();
  for (const std::int64_t elements : {5, 1'000'000}) {
    for (int round = 0; round < 5; ++round) {
      const at::Tensor sent = at::full({elements}, rank.index() + 10 * round, at::kFloat);
      at::Tensor received = at::zeros({elements});
      const std::array<Transfer, 2> both = {Transfer{kSend, peer, sent},
                                            Transfer{kReceive, peer, received}};
      group->exchange(both, Rank::call("between two")).wait();
      EXPECT_TRUE(received.eq(peer + 10 * round).all().item<bool>());
    }
  }
  report_error(rank, "error", [&] { group->barrier(Rank::call("never", Seconds(2))).wait(); });
}

class Failures : public testing::TestWithParam<TestedEngine> {
 protected:
  static std::vector<RankResult> run(const std::string& function, int size,
                                     std::map<std::string, std::string> arguments = {}) {
    RankOptions options = GetParam().options;
    options.arguments = std::move(arguments);
    return expect_ranks(function, size, options);
  }
  static double seconds(const RankResult& result, const std::string& name) {
    return std::stod(result.values.at(name + " seconds"));
  }
};

TEST_P(Failures, ARankThatDoesNotEnter) {
  const auto results = run("does_not_enter", 3);
  int deadlines = 0;
  for (const int rank : {0, 2}) {
    const auto& values = results[static_cast<std::size_t>(rank)].values;
    // The first of the two closes the connections, which the other may see first.
    deadlines += values.at("error") == "DeadlineError";
    EXPECT_THAT(values.at("error"), testing::AnyOf("DeadlineError", "PeerError"));
    EXPECT_THAT(
        values.at("error message"),
        AllOf(HasSubstr("rank 1 (host " + host_name() + ", pid "),
              HasSubstr(") has not entered all_reduce 'gradients' on axis data; ranks 0 and "
                        "2 have waited 1.0 s; it last completed all_reduce 'warm-up' ")));
    EXPECT_GT(seconds(results[static_cast<std::size_t>(rank)], "error"), 0.9);
    EXPECT_LT(seconds(results[static_cast<std::size_t>(rank)], "error"), kSoon);
    EXPECT_EQ(values.at("afterwards"), "PeerError");
    EXPECT_THAT(values.at("afterwards message"), HasSubstr("barrier 'never' on axis data: "));
    EXPECT_EQ(values.at("a send afterwards"), "PeerError");
    EXPECT_LT(seconds(results[static_cast<std::size_t>(rank)], "afterwards"), kSoon);
    if (values.at("error") == "DeadlineError") {
      EXPECT_THAT(values.at("error message"), HasSubstr(" sleeps: it waits for something else"));
    }
  }
  EXPECT_GE(deadlines, 1);
  EXPECT_EQ(results[1].values.at("late"), "PeerError");
  EXPECT_THAT(results[1].values.at("late message"), HasSubstr("gave up: "));
}

TEST_P(Failures, ARankThatIsStopped) {
  const auto results = run("is_stopped", 3);
  int told = 0;
  for (const int rank : {0, 2}) {
    const std::string message = results[static_cast<std::size_t>(rank)].values.at("error message");
    EXPECT_THAT(message, HasSubstr("has not entered all_reduce 'gradients' on axis data"));
    told += message.find("is stopped (SIGSTOP, a debugger, a frozen container): kill -CONT ") !=
            std::string::npos;
  }
  EXPECT_GE(told, 1);  // the second hears of the first one's reason
}

TEST_P(Failures, ARankInAnEndlessLoop) {
  const std::string message = run("loops", 2)[0].values.at("error message");
  EXPECT_THAT(message,
              AllOf(HasSubstr("has not entered barrier 'together' on axis data; rank 0 has "
                              "waited 1.0 s; it has begun no operation"),
                    HasSubstr("is computing: an endless loop")));
}

TEST_P(Failures, ARankThatHearsOfItself) {
  const auto results = run("hears_of_itself", 2);
  EXPECT_THAT(results[0].values.at("error message"),
              AllOf(HasSubstr("rank 1 (host " + host_name()),
                    HasSubstr("has not entered barrier 'together'"), HasSubstr(" | process "),
                    Not(HasSubstr("gave up"))));
  EXPECT_THAT(results[1].values.at("error message"), HasSubstr(" gave up: rank 1 "));
}

TEST_P(Failures, ARankInAnotherOperation) {
  const auto results = run("is_elsewhere", 3, {{"what", "operation"}});
  for (const RankResult& result : results) {
    EXPECT_THAT(
        result.values.at("error message"),
        AllOf(HasSubstr("'gradients'"), HasSubstr("broadcast 'weights'"),
              HasSubstr("operation 2 on axis data"),
              EndsWith(" | all ranks must call the same operations, in the same order, with "
                       "the same sizes and types")));
  }
}

TEST_P(Failures, ARankWithAnotherShape) {
  const auto results = run("is_elsewhere", 3, {{"what", "shape"}});
  for (const RankResult& result : results) {
    EXPECT_THAT(
        result.values.at("error message"),
        AllOf(HasSubstr("all_reduce 'gradients'"), HasSubstr("9 x fp64"), HasSubstr("10 x fp32")));
  }
}

TEST_P(Failures, ARankThatIsKilled) {
  const auto results = run_ranks("is_killed", 3, GetParam().options);
  EXPECT_EQ(results[1].signal, SIGKILL);
  if (!GetParam().options.mpirun.empty()) return;  // comm_mpi_test.cc has what mpirun does then
  for (const int rank : {0, 2}) {
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(result.ok()) << result.output;
    EXPECT_EQ(result.values.at("error"), "PeerError");
    EXPECT_THAT(result.values.at("error message"),
                AllOf(HasSubstr("all_reduce 'gradients' on axis data: "),
                      HasSubstr("lost rank 1 (host " + host_name() + ", pid "),
                      AnyOf(HasSubstr("); it is in all_reduce 'gradients' (axis data) for "),
                            HasSubstr("); it was in all_reduce 'gradients' (axis data) when it "),
                            HasSubstr("); it last completed all_reduce "))));
    // At once, whatever the deadline, which is 30 s; messages ask other hosts first, for a second.
    EXPECT_LT(seconds(result, "error"), kSoon);
    EXPECT_EQ(result.values.at("afterwards"), "PeerError");
  }
}

RANK_FUNCTION(meets_an_error_of_its_own) {
  const Group group = rank.group();
  group.barrier(Rank::call("start")).wait();
  if (rank.index() == 1) throw std::runtime_error("the table has no row 7");
  EXPECT_THROW(group.barrier(Rank::call("next")).wait(), PeerError);
}

// Others do not wait for it to their deadline, nor does it for them, in MPI_Finalize.
TEST_P(Failures, AnExceptionOfOneRank) {
  const auto start = Clock::now();
  const auto results = run_ranks("meets_an_error_of_its_own", 3, GetParam().options);
  EXPECT_LT(Seconds(Clock::now() - start).count(), 20);
  EXPECT_THAT(results[1].output, HasSubstr("the table has no row 7"));
  for (const int rank : {0, 2}) {
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(result.ok() || result.signal == SIGKILL) << result.account();  // by mpirun
    EXPECT_FALSE(result.timed_out);
  }
}

TEST_P(Failures, Abort) {
  const auto results = run("aborts", 2);
  for (const std::string name : {"first", "second", "third"}) {
    EXPECT_EQ(results[0].values.at(name), "PeerError");
    EXPECT_THAT(results[0].values.at(name + " message"),
                AllOf(HasSubstr(name), HasSubstr("the loss is not finite")));
    EXPECT_LT(seconds(results[0], name), kSoon);
  }
  EXPECT_THAT(results[1].values.at("afterwards message"), HasSubstr("the loss is not finite"));
}

TEST_P(Failures, AbortOfOwnOperations) {
  const auto results = run("aborts_itself", 2);
  EXPECT_EQ(results[0].values.at("error"), "PeerError");
  EXPECT_THAT(results[0].values.at("error message"),
              HasSubstr("all_reduce 'gradients' on axis data: rank 5 died on host x"));
  EXPECT_LT(seconds(results[0], "error"), kSoon);
}

TEST_P(Failures, RanksThatDisagree) {
  const auto results = run("disagrees", 2);
  for (const RankResult& result : results) {
    EXPECT_THAT(result.values.at("error"), testing::AnyOf("DeadlineError", "PeerError"));
    EXPECT_LT(seconds(result, "error"), kSoon);
  }
  const std::string both =
      results[0].values.at("error message") + results[1].values.at("error message");
  EXPECT_THAT(both, AllOf(HasSubstr("all_reduce 'one'"), HasSubstr("all_reduce 'other'")));
}

TEST_P(Failures, SizesThatDoNotMatch) {
  for (const std::string elements : {"3", "200000"}) {
    const auto results = run("sends_too_little", 2, {{"elements", elements}});
    for (const int rank : {0, 1}) {
      const RankResult& result = results[static_cast<std::size_t>(rank)];
      EXPECT_EQ(result.values.at("error"), "PeerError") << elements << ", rank " << rank;
      EXPECT_THAT(result.values.at("error message"),
                  AllOf(HasSubstr("all_to_all 'tokens'"),
                        HasSubstr("rank " + std::to_string(1 - rank) + " (host "),
                        AnyOf(HasSubstr(" are expected"), HasSubstr(" are sent"))))
          << elements << ", rank " << rank;
      EXPECT_LT(seconds(result, "error"), kSoon);
    }
  }
}

TEST_P(Failures, ARankThatDoesNotCome) {
  const auto results = run("does_not_come", 3);
  for (const int rank : {0, 2}) {
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(result.values.at("error"), "RendezvousError");
    EXPECT_THAT(
        result.values.at("error message"),
        HasSubstr("rank 1 did not come to connect axis data (ranks 0, 1 and 2) within 1.0 s"));
    EXPECT_LT(seconds(result, "error"), kSoon);
  }
}

TEST_P(Failures, ADeadlineBehindAnOperationThatHangs) {
  const auto results = run("queues", 2);
  EXPECT_EQ(results[0].values.at("second"), "DeadlineError");
  EXPECT_THAT(results[0].values.at("second message"), HasSubstr("all_reduce 'second'"));
  EXPECT_LT(seconds(results[0], "second"), kSoon);
  EXPECT_EQ(results[0].values.at("first"), "PeerError");
  EXPECT_LT(seconds(results[0], "first"), kSoon);
  // Of which the first fails then.
  EXPECT_THAT(results[0].values.at("left for the launcher"),
              AllOf(HasSubstr("all_reduce 'second'"), Not(HasSubstr("all_reduce 'first'"))));
}

TEST_P(Failures, EndsAtDifferentTimes) {
  for (const RankResult& result : run("ends_early", 3)) EXPECT_EQ(result.output, "");
}

TEST_P(Failures, OneThatLeavesIsMissedByThoseWhoWaitForIt) {
  const bool own_process = GetParam().options.mpirun.empty();  // MPI keeps it until all are done
  const auto results = run("leaves_early", 3, {{"until", own_process ? "ended" : "left"}});
  for (const int rank : {0, 1}) {
    const auto& values = results[static_cast<std::size_t>(rank)].values;
    EXPECT_THAT(values.at("error message"), HasSubstr("rank 2 (host " + host_name() + ", pid "));
    if (own_process) {
      EXPECT_EQ(values.at("error"), "PeerError");
    } else {
      EXPECT_THAT(values.at("error"), AnyOf("PeerError", "DeadlineError"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, Failures, testing::ValuesIn(engines_of_one_part()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace troika::test
