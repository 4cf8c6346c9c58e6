// A rank of the engine shm that has to share its core with the rank that it waits for lets that one
// go first at once, and does not spin: the cores that it may use count, and not those of the
// machine.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <time.h>
#include <troika/comm/shm/patience.h>
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
// already in the next. So every second operation of a rank that spun before it let the other go
// would use the processor for that long.
RANK_FUNCTION(waits_on_one_core) {
  keep_to_one_core();
  EXPECT_EQ(usable_cores(), 1);
  const Group group = make_group("data", {0, 1}, rank.index(), rank.options());
  const at::Tensor one = at::ones({1});
  std::vector<Seconds> used;
  for (int round = 0; round < kRounds; ++round) {
    const Seconds before = cpu_time_of_this_thread();
    group.all_reduce(one, ReduceOp::kAverage, Rank::call("one")).wait();
    used.push_back(cpu_time_of_this_thread() - before);
  }
  const auto third_quartile = used.begin() + 3 * kRounds / 4;
  std::ranges::nth_element(used, third_quartile);
  EXPECT_LT(third_quartile->count(), shm::patience_of(2, 2).spin.count());
}

TEST(PatienceOfSharedMemory, CountsTheCoresThatARankMayUse) {
  expect_ranks("waits_on_one_core", 2, {.engine = EngineKind::kShm});
}

}  // namespace
}  // namespace troika::test
