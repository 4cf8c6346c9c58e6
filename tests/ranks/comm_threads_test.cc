// Small operations of the engine shm are carried out by the threads that call them: no thread of
// the engine is woken.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <troika/base/time.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

// By thread of this process but the calling one, how often it has gone to sleep. One that was woken
// has gone to sleep once more, or is awake.
std::map<std::string, std::string> sleeps_of_other_threads() {
  const std::string own = std::to_string(syscall(SYS_gettid));
  std::map<std::string, std::string> sleeps;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string thread = entry.path().filename();
    if (thread == own) continue;
    std::ifstream status(entry.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("voluntary_ctxt_switches:")) sleeps[thread] = line;
    }
  }
  return sleeps;
}

// The thread that calls back when it is done.
std::thread::id completed_by(const Work& work) {
  std::thread::id thread;
  work.on_done([&thread](const std::exception_ptr&) { thread = std::this_thread::get_id(); });
  work.wait();
  return thread;
}

void start_small_ones(const Rank& rank, const Group& group, const at::Tensor& tensor) {
  const int peer = 1 - rank.index();
  const at::Tensor both = at::zeros({2, tensor.numel()});
  const at::Tensor received = at::zeros_like(tensor);
  const Transfer transfers[] = {{Transfer::Direction::kSend, peer, tensor},
                                {Transfer::Direction::kReceive, peer, received}};
  const Call call = Rank::call("small");
  const auto here = std::this_thread::get_id();
  EXPECT_EQ(completed_by(group.broadcast(tensor, 1, call)), here);
  EXPECT_EQ(completed_by(group.exchange(transfers, call)), here);
  EXPECT_EQ(completed_by(group.barrier(call)), here);
  if (tensor.numel() > 10'000) return;  // what follows gives, or takes, more, or is in steps
  EXPECT_EQ(completed_by(group.all_reduce(tensor, ReduceOp::kAverage, call)), here);
  EXPECT_EQ(completed_by(group.gather(both, tensor, 0, call)), here);
  EXPECT_EQ(completed_by(group.scatter(tensor, both, 0, call)), here);
  EXPECT_EQ(completed_by(group.all_gather(both, tensor, call)), here);
  EXPECT_EQ(completed_by(group.reduce_scatter(received, both, ReduceOp::kSum, call)), here);
}

RANK_FUNCTION(needs_no_helper) {
  const Group group = rank.group();
  const auto all_sizes = [&](int rounds) {
    for (int round = 0; round < rounds; ++round) {
      // In the ring, in a slot of 16 KiB, and in one of 96 KiB.
      for (const std::int64_t elements : {1, 1'500, 24'576}) {
        start_small_ones(rank, group, at::ones({elements}));
      }
    }
  };
  all_sizes(2);
  rank.wait_for_all("warm");
  const auto before = sleeps_of_other_threads();
  all_sizes(100);
  EXPECT_EQ(sleeps_of_other_threads(), before);
  EXPECT_GE(before.size(), 1u);
  rank.wait_for_all("counted");
  // Those that are larger do wake one.
  for (int round = 0; round < 20; ++round) {
    group.all_reduce(at::ones({1'000'000}), ReduceOp::kSum, Rank::call("large")).wait();
  }
  EXPECT_NE(sleeps_of_other_threads(), before);
}

TEST(ThreadsOfSharedMemory, SleepWhileOperationsAreSmall) {
  expect_ranks("needs_no_helper", 2, {.engine = "shm"});
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// What a rank is late by is its own work; those that wait for it use next to no processor.
RANK_FUNCTION(sleeps_through_a_long_wait) {
  const Group group = rank.group();
  group.barrier(Rank::call("warm")).wait();
  if (rank.index() == 1) std::this_thread::sleep_for(std::chrono::seconds(2));
  const double before = processor_seconds();
  const auto start = Clock::now();
  group.barrier(Rank::call("late")).wait();
  if (rank.index() == 1) return;
  EXPECT_GT(Seconds(Clock::now() - start).count(), 1);
  EXPECT_LT(processor_seconds() - before, 0.1);
}

TEST(ThreadsOfSharedMemory, SleepThroughALongWait) {
  for (const int ranks : {2, 4}) {
    expect_ranks("sleeps_through_a_long_wait", ranks, {.engine = "shm"});
  }
}

}  // namespace
}  // namespace troika::test
