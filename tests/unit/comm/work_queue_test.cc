#include <troika/comm/work_queue.h>

#include <gtest/gtest.h>
#include <troika/base/error.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

namespace troika {
namespace {

constexpr Seconds kLong{30};

WorkQueue::Job job(std::function<void()> run, Seconds timeout = kLong) {
  return {.deadline = Deadline::in(timeout), .run = std::move(run), .overdue = [] {
            return std::make_exception_ptr(DeadlineError("overdue"));
          }};
}

TEST(WorkQueue, RunsInOrderWithoutAnybodyWaiting) {
  std::vector<int> order;
  {
    WorkQueue queue(WorkQueue::Order::kAsAdded);
    for (int i = 0; i < 100; ++i) (void)queue.add(job([&order, i] { order.push_back(i); }));
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(WorkQueue, HandsOnErrorsToEveryWait) {
  WorkQueue queue(WorkQueue::Order::kAsAdded);
  const Work work = queue.add(job([] { throw std::runtime_error("broken"); }));
  EXPECT_THROW(work.wait(), std::runtime_error);
  EXPECT_THROW(work.wait(), std::runtime_error);
  EXPECT_TRUE(work.done());
}

TEST(WorkQueue, CallsBackOnceBeforeItIsDone) {
  WorkQueue queue(WorkQueue::Order::kAsAdded);
  std::promise<void> start;
  std::atomic<int> calls = 0;
  const Work work = queue.add(job([ready = start.get_future().share()] { ready.wait(); }));
  EXPECT_FALSE(work.done());
  work.on_done([&](const std::exception_ptr& error) {
    EXPECT_FALSE(error);
    EXPECT_FALSE(work.done());
    ++calls;
  });
  start.set_value();
  work.wait();
  EXPECT_EQ(calls, 1);
  work.on_done([&](const std::exception_ptr&) { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST(WorkQueue, WaitsForWhatIsUnderWayWhenItGoes) {
  std::atomic<bool> ran = false;
  Work work;
  {
    WorkQueue queue(WorkQueue::Order::kIndependent);
    work = queue.add(job([&] { ran = true; }));
  }
  EXPECT_TRUE(ran);
  work.wait();  // outlives the queue
}

TEST(WorkQueue, FailsWhatItNeverReaches) {
  WorkQueue queue(WorkQueue::Order::kAsAdded);
  std::promise<void> release;
  std::promise<void> started;
  const Work first = queue.add(job([&, ready = release.get_future().share()] {
    started.set_value();
    ready.wait();
  }));
  started.get_future().wait();
  const Work second = queue.add(job([] {}, Seconds(0.05)));
  EXPECT_THROW(second.wait(), DeadlineError);
  release.set_value();
  first.wait();
}

// Such as one that asks its peers whose fault it is, once its deadline has passed.
TEST(WorkQueue, LeavesTheErrorToWhatIsUnderWay) {
  WorkQueue queue(WorkQueue::Order::kAsAdded);
  std::promise<void> started;
  const Work work = queue.add(job(
      [&] {
        started.set_value();
        std::this_thread::sleep_for(std::chrono::milliseconds(1300));
        throw PeerError("rank 1 is late");
      },
      Seconds(0.05)));
  started.get_future().wait();
  EXPECT_THROW(work.wait(), PeerError);
}

// In the thread that waits, if it comes before the queue's.
TEST(WorkQueue, WhoeverWaitsRunsWhatComesBefore) {
  WorkQueue queue(WorkQueue::Order::kAsAdded);
  std::vector<int> order;
  const auto soon = [&](int number) {
    WorkQueue::Job added = job([&order, number] { order.push_back(number); });
    added.start = WorkQueue::Start::kSoon;
    return queue.add(std::move(added));
  };
  for (int round = 0; round < 1000; ++round) {
    order.clear();
    const Work first = soon(1), second = soon(2), third = soon(3);
    second.wait();
    EXPECT_TRUE(first.done());
    third.wait();
    EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  }
}

TEST(WorkQueue, TakesWhatNobodyWaitsForSoon) {
  WorkQueue queue(WorkQueue::Order::kAsAdded);
  for (int round = 0; round < 20; ++round) {
    std::promise<std::thread::id> ran;
    WorkQueue::Job added = job([&] { ran.set_value(std::this_thread::get_id()); });
    added.start = WorkQueue::Start::kSoon;
    const Work work = queue.add(std::move(added));
    EXPECT_NE(ran.get_future().get(), std::this_thread::get_id());
  }
}

// Though the thread that waits could run it.
TEST(WorkQueue, IsNotHeldUpByWhatHasMoreTime) {
  WorkQueue queue(WorkQueue::Order::kAsAdded);
  std::promise<void> release;
  WorkQueue::Job patient = job([ready = release.get_future().share()] { ready.wait(); });
  patient.start = WorkQueue::Start::kSoon;
  WorkQueue::Job hurried = job([] {}, Seconds(0.05));
  hurried.start = WorkQueue::Start::kSoon;
  const Work first = queue.add(std::move(patient)), second = queue.add(std::move(hurried));
  EXPECT_THROW(second.wait(), DeadlineError);
  release.set_value();
  first.wait();
}

// Nor by what its own job waits for.
TEST(WorkQueue, IsNotHeldUpByWhatItsJobWaitsFor) {
  WorkQueue queue(WorkQueue::Order::kAsAdded);
  std::promise<void> release;
  WorkQueue::Job held_up =
      job([ready = release.get_future().share()] { ready.wait(); }, Seconds(0.05));
  held_up.start = WorkQueue::Start::kSoon;
  held_up.latest = Deadline::in(kLong).at();
  const Work work = queue.add(std::move(held_up));
  EXPECT_THROW(work.wait(), DeadlineError);
  release.set_value();
}

// What is to start at once does not wait for what may start later.
TEST(WorkQueue, TakesAtOnceWhatComesBefore) {
  WorkQueue queue(WorkQueue::Order::kAsAdded);
  std::promise<void> ran;
  WorkQueue::Job soon = job([] {});
  soon.start = WorkQueue::Start::kSoon;
  const Work first = queue.add(std::move(soon));
  const Work second = queue.add(job([&] { ran.set_value(); }));
  ran.get_future().wait();
  EXPECT_TRUE(first.done());
}

TEST(WorkQueue, IndependentJobsOvertake) {
  WorkQueue queue(WorkQueue::Order::kIndependent);
  std::promise<void> release;
  const Work first = queue.add(job([ready = release.get_future().share()] { ready.wait(); }));
  const Work second = queue.add(job([&] { release.set_value(); }));
  second.wait();
  first.wait();
  EXPECT_TRUE(first.done());
}

TEST(WorkQueue, TakesWaitsFromManyThreads) {
  WorkQueue queue(WorkQueue::Order::kAsAdded);
  std::atomic<int> sum = 0;
  std::vector<Work> works;
  for (int i = 0; i < 200; ++i) works.push_back(queue.add(job([&sum] { ++sum; })));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (const Work& work : works) work.wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, 200);
}

}  // namespace
}  // namespace troika
