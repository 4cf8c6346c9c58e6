// What only shared memory has when something goes wrong: members that look at each other's memory.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <troika/base/error.h>
#include <troika/observe/machine.h>

#include <atomic>
#include <filesystem>
#include <iostream>
#include <thread>

#include "ranks/comm_failures.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

// As is_elsewhere, but rank 1 loses its core after it has told the others, before it has written
// its record: that is put in place only once they look for it.
RANK_FUNCTION(is_elsewhere_and_late_to_say) {
  EngineOptions options = rank.options();
  options.recorders = rank.folder();
  const auto path = recorder_path(rank.folder(), rank.index());
  const bool differs = rank.index() == 1;
  const auto own_path = differs ? rank.folder() / "not-yet-seen" : path;
  options.observers.recorder = Recorder::create(own_path, rank.index(), "here");
  const Group group = make_group("data", {0, 1}, rank.index(), options);
  group.barrier(Rank::call("warm-up")).wait();
  const Call call = Rank::call("gradients", Seconds(10));
  if (differs) {
    at::Tensor other = at::ones({9}, at::kDouble);
    const Work work = group.all_reduce(other, ReduceOp::kSum, call);
    rank.store().set("entered", "");
    (void)rank.store().get("entering", Deadline::in(Seconds(10)));
    std::this_thread::sleep_for(Seconds(0.2));  // what is measured does not depend on it
    std::filesystem::rename(own_path, path);
    report_error(rank, "error", [&] { work.wait(); });
  } else {
    (void)rank.store().get("entered", Deadline::in(Seconds(10)));
    rank.store().set("entering", "");
    at::Tensor tensor = at::ones({10});
    report_error(rank, "error", [&] { group.all_reduce(tensor, ReduceOp::kSum, call).wait(); });
  }
  rank.wait_for_all("all have seen it");
}

// Large sums whose deadlines pass at about the time at which they end, on a machine that has too
// much to do: whatever has failed, no rank writes to its tensor afterwards.
RANK_FUNCTION(is_right_or_left_alone) {
  constexpr std::int64_t kElements = 4'000'000;
  int failures = 0;
  for (std::uint64_t round = 0; round < 16; ++round) {
    EngineOptions options = rank.options();
    options.generation = round;
    const Group group = make_group("data", {0, 1}, rank.index(), options);
    at::Tensor tensor = round % 2 == 0 ? at::empty({kElements}, at::kFloat)
                                       : group.allocate(kElements * sizeof(float)).view(at::kFloat);
    tensor.fill_(rank.index() + 1);
    rank.wait_for_all("before " + std::to_string(round));
    std::atomic<bool> ended = false;
    std::vector<std::thread> burners;
    for (int i = 0; i < 3 * rank.index(); ++i) {
      burners.emplace_back([&] {
        while (!ended) {
        }
      });
    }
    at::Tensor left;
    try {
      const Seconds limit(0.004 + 0.0005 * static_cast<double>(round));
      group.all_reduce(tensor, ReduceOp::kSum, Rank::call("sum", limit)).wait();
      left = at::full({kElements}, 3.F);
    } catch (const Error&) {
      left = tensor.clone();
      ++failures;
    }
    ended = true;
    for (std::thread& burner : burners) burner.join();
    rank.wait_for_all("after " + std::to_string(round));
    EXPECT_TRUE(at::equal(tensor, left)) << "round " << round;
  }
  rank.report("failures", std::to_string(failures));
}

// Dies when all others have entered an operation that has a minute.
RANK_FUNCTION(dies_while_others_wait) {
  const Group group = watched_group(rank);
  group.barrier(Rank::call("warm-up")).wait();
  const auto now = [] { return std::to_string(Seconds(Clock::now().time_since_epoch()).count()); };
  if (rank.index() == 1) {
    for (int other = 0; other < rank.size(); ++other) {
      if (other == 1) continue;
      (void)rank.store().get("waits/" + std::to_string(other), Deadline::in(Seconds(30)));
    }
    rank.report("dies", now());
    raise(SIGKILL);
  }
  at::Tensor tensor = at::ones({std::stoi(rank.argument("elements"))});
  const Work work = group.all_reduce(tensor, ReduceOp::kSum, Rank::call("gradients", Seconds(60)));
  rank.store().set("waits/" + std::to_string(rank.index()), "");
  report_error(rank, "error", [&] { work.wait(); });
  rank.report("told", now());
}

TEST(SharedMemory, ARecordThatIsLate) {
  const auto results = run_ranks("is_elsewhere_and_late_to_say", 2, {.engine = "shm"});
  for (const RankResult& result : results) {
    ASSERT_TRUE(result.ok()) << result.account();
    EXPECT_THAT(
        result.values.at("error message"),
        AllOf(HasSubstr("all_reduce 'gradients'"), HasSubstr("9 x fp64"), HasSubstr("10 x fp32"),
              EndsWith("must give tensors of the same size and type")));
  }
}

TEST(SharedMemory, AFailedOperationsTensorIsLeftAlone) {
  const auto results = expect_ranks("is_right_or_left_alone", 2, {.engine = "shm"});
  std::cout << "of 16 sums failed: " << results[0].values.at("failures") << " on rank 0, "
            << results[1].values.at("failures") << " on rank 1\n";
}

// Long before the deadline, also with more ranks than cores.
TEST(DeathInSharedMemory, IsNoticedAtOnce) {
  for (const int size : {2, 4}) {
    for (const char* elements : {"1", "4000000"}) {
      const auto results = run_ranks("dies_while_others_wait", size,
                                     {.engine = "shm", .arguments = {{"elements", elements}}});
      EXPECT_EQ(results[1].signal, SIGKILL);
      const double dies = std::stod(results[1].values.at("dies"));
      for (std::size_t rank = 0; rank < results.size(); ++rank) {
        if (rank == 1) continue;
        ASSERT_TRUE(results[rank].ok()) << results[rank].account();
        EXPECT_EQ(results[rank].values.at("error"), "PeerError");
        EXPECT_THAT(results[rank].values.at("error message"), HasSubstr("lost rank 1 (host "));
        EXPECT_LT(std::stod(results[rank].values.at("told")) - dies, 10) << "rank " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace troika::test
