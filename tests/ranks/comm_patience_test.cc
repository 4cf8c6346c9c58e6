// A rank of the engine shm that has to share its core with the rank that it waits for goes to sleep
// early: the cores that it may use count, and not those of the machine.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <troika/comm/shm/patience.h>
#include <troika/observe/machine.h>
#include <troika/observe/recorder.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

constexpr int kRounds = 31;

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

// "4711 (test_ranks) S 4710 ..."
bool sleeps(const std::string& thread) {
  std::ifstream file("/proc/" + thread + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = text.rfind(") ");
  return name_end != std::string::npos && text.compare(name_end + 2, 1, "S") == 0;
}

// Until rank 0 is in its operation number `count`, and asleep there.
void wait_until_asleep(const Rank& rank, const std::string& thread, std::uint64_t count) {
  const Deadline deadline = Deadline::in(Seconds(20));
  while (read_recorder(recorder_path(rank.folder(), 0)).count < count || !sleeps(thread)) {
    ASSERT_FALSE(deadline.passed()) << "rank 0 does not go to sleep";
    std::this_thread::yield();
  }
}

// Rank 1 comes to each operation when rank 0 is asleep in it.
RANK_FUNCTION(sleeps_early_on_one_core) {
  const bool first = rank.index() == 0;
  EngineOptions options = rank.options();
  if (first) {
    keep_to_one_core();
    EXPECT_EQ(usable_cores(), 1);
    options.observers.recorder = Recorder::create(recorder_path(rank.folder(), 0), 0, "here");
    rank.store().set("thread", std::to_string(syscall(SYS_gettid)));
  }
  const std::string thread = rank.store().get("thread", Deadline::in(Seconds(30)));
  const Group group = make_group("data", {0, 1}, rank.index(), options);
  const at::Tensor one = at::ones({1});
  std::vector<Seconds> used;
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    if (!first) wait_until_asleep(rank, thread, round);
    const Seconds before = cpu_time_of_this_thread();
    group.all_reduce(one, ReduceOp::kAverage, Rank::call("one")).wait();
    used.push_back(cpu_time_of_this_thread() - before);
  }
  if (!first) return;
  const Seconds shared = shm::patience_of(2, 1).yield, alone = shm::patience_of(2, 2).yield;
  std::ranges::nth_element(used, used.begin() + kRounds / 2);
  EXPECT_LT(used[kRounds / 2].count(), (shared + alone).count() / 2);
}

TEST(PatienceOfSharedMemory, CountsTheCoresThatARankMayUse) {
  expect_ranks("sleeps_early_on_one_core", 2, {.engine = EngineKind::kShm});
}

}  // namespace
}  // namespace troika::test
