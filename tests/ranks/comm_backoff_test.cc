// A rank of the engine shm that has to share its core with the rank that it waits for lets that one
// go first at once, and does not spin: the cores that it may use count, and not those of the
// machine.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <time.h>
#include <troika/comm/shm/backoff.h>
#include <troika/observe/machine.h>

#include <algorithm>
#include <vector>

#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

constexpr int kRounds = 400;

Seconds cpu_time_of_this_thread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return Seconds(static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec));
}

void keep_to_one_core() {
  cpu_set_t allowed, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int first = 0;
  while (!CPU_ISSET(first, &allowed)) ++first;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
}

// On one core only one of the two ranks runs: it waits in one operation, and finds the other there
// already in the next. So every second operation of a rank that spins before it lets the other go
// uses the processor for that long. Of the operations of two ranks that share a core: what a
// quarter of them use more than.
Seconds used_in_an_operation(const Group& group) {
  const at::Tensor one = at::ones({1});
  std::vector<Seconds> used;
  for (int round = 0; round < kRounds; ++round) {
    const Seconds before = cpu_time_of_this_thread();
    group.all_reduce(one, ReduceOp::kAverage, Rank::call("one")).wait();
    used.push_back(cpu_time_of_this_thread() - before);
  }
  const auto third_quartile = used.begin() + 3 * kRounds / 4;
  std::ranges::nth_element(used, third_quartile);
  return *third_quartile;
}

RANK_FUNCTION(waits_on_one_core) {
  keep_to_one_core();
  EXPECT_EQ(usable_cores(), 1);
  const Group group = make_group("data", {0, 1}, rank.index(), rank.options());
  EXPECT_LT(used_in_an_operation(group).count(), shm::backoff_for(2, 2).spin.count());
}

// Two groups, made while there are as many cores as they have members, of which one belongs to a
// job that has more ranks on this host.
RANK_FUNCTION(waits_in_a_part_of_a_job) {
  const int cores = usable_cores();
  EngineOptions options = rank.options();
  const Group alone = make_group("alone", {0, 1}, rank.index(), options);
  options.ranks_on_host = cores + 1;
  const Group part = make_group("part", {0, 1}, rank.index(), options);
  keep_to_one_core();
  rank.wait_for_all("on one core");
  EXPECT_LT(used_in_an_operation(part).count(), shm::backoff_for(2, 2).spin.count() / 2);
  if (cores < 2) return;
  // It may be one of them that waits nearly always.
  const at::Tensor most = at::full({1}, used_in_an_operation(alone).count(), at::kDouble);
  alone.all_reduce(most, ReduceOp::kMax, Rank::call("most")).wait();
  EXPECT_GT(most.item<double>(), shm::backoff_for(2, 2).spin.count() / 2);
}

TEST(BackoffOfSharedMemory, CountsTheCoresThatARankMayUse) {
  expect_ranks("waits_on_one_core", 2, {.engine = "shm"});
}

TEST(BackoffOfSharedMemory, CountsTheRanksOfTheJobOnThisHost) {
  expect_ranks("waits_in_a_part_of_a_job", 2, {.engine = "shm"});
}

}  // namespace
}  // namespace troika::test
