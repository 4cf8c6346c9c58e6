// How many bytes members of shared memory take from each other, and how often they wait, as
// docs/engines.md states it, read from the flight recorder.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "ranks/comm_meter.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

// A rank that has given something by windows, and one that has not and looks that no rank reads any
// more.
constexpr std::uint32_t kThreeWindows = 2 * 3 - 1, kOneWindow = 2;

// Shared memory: what moves more than fits into a slot of 128 KiB.
void check_windows(const Meter& meter) {
  const Group& group = meter.group();
  const std::uint64_t n = meter.size();
  const bool root = group.rank() == 0;
  const Call call = Rank::call("through windows");
  at::Tensor large = at::ones({kLarge}), part = at::ones({kLarge / group.size()});
  at::Tensor all = at::ones({group.size(), kLarge});
  const std::uint64_t part_bytes = kLargeBytes / n;

  group.broadcast(large, 0, call).wait();
  meter.expect("broadcast", {root ? 0 : kLargeBytes, root ? kThreeWindows : kThreeWindows + 1});
  group.all_gather(all, large, call).wait();
  meter.expect("all_gather", {(n - 1) * kLargeBytes, kThreeWindows});
  group.reduce_scatter(part, large, ReduceOp::kSum, call).wait();
  meter.expect("reduce_scatter", {(n - 1) * part_bytes, kThreeWindows});
  group.gather(all, large, 0, call).wait();
  meter.expect("gather", {root ? (n - 1) * kLargeBytes : 0, kThreeWindows});
  group.scatter(part, large, 0, call).wait();
  meter.expect("scatter", {root ? 0 : part_bytes, root ? kThreeWindows : kThreeWindows + 1});
  const std::vector<std::int64_t> counts(n, kLarge / group.size());
  at::Tensor other = at::ones({kLarge});
  group.all_to_all(other, counts, large, counts, call).wait();
  // The table of sizes in front begins a fourth window.
  meter.expect("all_to_all", {(n - 1) * part_bytes, kThreeWindows + 2});
}

// Shared memory: the sizes on both sides of where algorithms change.
void check_limits_of_slots(const Meter& meter) {
  constexpr std::uint64_t kMostBytes = 128 << 10;
  constexpr std::int64_t kMost = kMostBytes / 4;
  const Group& group = meter.group();
  const std::uint64_t n = meter.size();
  const bool root = group.rank() == 0;
  at::Tensor just = at::ones({kMost}), more = at::ones({kMost + 1});
  const auto together = static_cast<std::int64_t>(kMostBytes / (n - 1) / 4);
  group.all_reduce(just.narrow(0, 0, together), ReduceOp::kSum, Rank::call("x")).wait();
  meter.expect("all_reduce of 128 KiB from the others",
               {(n - 1) * static_cast<std::uint64_t>(together) * 4, 1});
  group.all_reduce(more.narrow(0, 0, together + 1), ReduceOp::kSum, Rank::call("x")).wait();
  EXPECT_EQ(meter.last().steps, n == 2 ? kOneWindow : 1 + 2u);
  group.broadcast(just, 0, Rank::call("x")).wait();
  meter.expect("broadcast of 128 KiB", {root ? 0 : kMostBytes, 1});
  group.broadcast(more, 0, Rank::call("x")).wait();
  meter.expect("broadcast of more",
               {root ? 0 : kMostBytes + 4, root ? kOneWindow : kOneWindow + 1});
  // An all_to_all has a table of 24 bytes a member in front, and one step up to 16 KiB.
  const std::int64_t few = ((16 << 10) / 4 - 6 * group.size()) / group.size();
  for (const std::int64_t each : {few, few + 1}) {
    const std::vector<std::int64_t> counts(n, each);
    at::Tensor input = at::ones({each * group.size()}), output = at::ones({each * group.size()});
    group.all_to_all(output, counts, input, counts, Rank::call("x")).wait();
    meter.expect("all_to_all of 16 KiB, and of more",
                 {(n - 1) * static_cast<std::uint64_t>(each) * 4, each == few ? 1 : kOneWindow});
  }
}

// Shared memory: an all_reduce that fits into large slots is made in memory for all where all have
// it there; else a rank that has it there waits until the others have read it.
void check_large_slots(const Meter& meter, const at::Tensor& arena) {
  const Group& group = meter.group();
  const std::uint64_t n = meter.size();
  const at::Tensor own = at::ones({kMedium}), shared = arena.narrow(0, 0, kMedium);
  group.all_reduce(own, ReduceOp::kSum, Rank::call("in large slots")).wait();
  meter.expect("all_reduce at once", {(n - 1) * kMediumBytes, 1});
  group.all_reduce(shared, ReduceOp::kSum, Rank::call("in place")).wait();
  meter.expect("all_reduce of little in memory for all", {2 * (n - 1) * kMediumBytes / n, 2});
  const bool first = group.rank() == 0;
  group.all_reduce(first ? shared : own, ReduceOp::kSum, Rank::call("mixed")).wait();
  meter.expect("all_reduce where one has memory for all", {(n - 1) * kMediumBytes, first ? 2u : 1});
}

// Shared memory: what lies in memory for all is taken from there. Its owner waits until it is.
void check_memory_for_all(const Meter& meter, const at::Tensor& arena) {
  const Group& group = meter.group();
  const std::uint64_t n = meter.size();
  const bool root = group.rank() == 0;
  group.broadcast(arena, 0, Rank::call("from there")).wait();
  meter.expect("broadcast from memory for all", {root ? 0 : kLargeBytes, root ? 2u : 1u});
  at::Tensor all = at::ones({group.size(), kLarge}), part = at::ones({kLarge / group.size()});
  group.all_gather(all, arena, Rank::call("from there")).wait();
  meter.expect("all_gather from memory for all", {(n - 1) * kLargeBytes, 2});
  group.reduce_scatter(part, arena, ReduceOp::kSum, Rank::call("from there")).wait();
  meter.expect("reduce_scatter from memory for all", {(n - 1) * kLargeBytes / n, 2});
  group.gather(root ? all : at::Tensor(), arena, 0, Rank::call("from there")).wait();
  meter.expect("gather from memory for all", {root ? (n - 1) * kLargeBytes : 0, 2});
  group.scatter(part, root ? arena : at::Tensor(), 0, Rank::call("from there")).wait();
  meter.expect("scatter from memory for all", {root ? 0 : kLargeBytes / n, root ? 2u : 1u});
}

// Shared memory: a rank that receives before the others have sent waits once, and one that has sent
// what fits into the channel waits for no rank.
void check_exchange(Rank& rank, const Meter& meter) {
  const Group& group = meter.group();
  const at::Tensor small = at::ones({kSmall});
  if (rank.index() == 0) {
    (void)rank.store().get("receives", Deadline::in(Seconds(30)));
    const Transfer send{Transfer::Direction::kSend, 1, small};
    group.exchange({&send, 1}, Rank::call("x")).wait();
    meter.expect("exchange", {kSmallBytes, 0});
  } else if (rank.index() == 1) {
    const Transfer receive{Transfer::Direction::kReceive, 0, small};
    const Work work = group.exchange({&receive, 1}, Rank::call("x"));
    rank.store().set("receives", "");
    work.wait();
    meter.expect("exchange", {0, 1});
  }
  pass_on(group, small);
  EXPECT_EQ(meter.last().sent, kSmallBytes);
}

// In shared memory: bytes that a member reads from the others' memory, or writes to it.
RANK_FUNCTION(bytes_shared) {
  const Meter meter(rank);
  const Group& group = meter.group();
  const std::uint64_t n = meter.size(), own = static_cast<std::uint64_t>(rank.index());
  at::Tensor small = at::ones({kSmall});
  const at::Tensor arena = group.allocate(kLargeBytes).view(at::kFloat);
  const auto part = kSmall / rank.size();
  at::Tensor few = at::ones({part});

  group.all_reduce(small, ReduceOp::kSum, Rank::call("in slots")).wait();
  meter.expect("all_reduce at once", {(n - 1) * kSmallBytes, 1});
  group.all_reduce(arena, ReduceOp::kSum, Rank::call("in place")).wait();
  meter.expect("all_reduce in memory for all", {2 * (n - 1) * kLargeBytes / n, 2});
  group.reduce_scatter(few, small, ReduceOp::kSum, Rank::call("x")).wait();
  meter.expect("reduce_scatter", {(n - 1) * kSmallBytes / n, 1});
  group.all_gather(small, few, Rank::call("x")).wait();
  meter.expect("all_gather", {(n - 1) * kSmallBytes / n, 1});
  const std::vector<std::int64_t> counts(n, part);
  at::Tensor other = at::ones({kSmall});
  group.all_to_all(other, counts, small, counts, Rank::call("x")).wait();
  meter.expect("all_to_all", {(n - 1) * kSmallBytes / n, 1});
  group.broadcast(small, 0, Rank::call("x")).wait();
  meter.expect("broadcast", {own == 0 ? 0 : kSmallBytes, 1});
  group.gather(small, few, 0, Rank::call("x")).wait();
  meter.expect("gather", {own == 0 ? (n - 1) * kSmallBytes / n : 0, 1});
  group.scatter(few, small, 0, Rank::call("x")).wait();
  meter.expect("scatter", {own == 0 ? 0 : kSmallBytes / n, 1});
  group.barrier(Rank::call("x")).wait();
  meter.expect("barrier", {0, 1});
  check_windows(meter);
  check_limits_of_slots(meter);
  check_large_slots(meter, arena);
  check_memory_for_all(meter, arena);
  check_exchange(rank, meter);
}

RANK_FUNCTION(bytes_through_windows) {
  const Meter meter(rank);
  const std::uint64_t n = meter.size();
  at::Tensor large = at::ones({kLarge});
  meter.group().all_reduce(large, ReduceOp::kSum, Rank::call("through windows")).wait();
  // Members reduce whole lines of the cache, so parts differ by a line in each of three windows.
  EXPECT_NEAR(static_cast<double>(meter.last().sent),
              2. * static_cast<double>((n - 1) * kLargeBytes) / static_cast<double>(n),
              2. * 64 * 3);
  // Entered; filled and taken, three times. Of two, no rank waits for the last two to be taken.
  EXPECT_EQ(meter.last().steps, n == 2 ? 2 * 3 - 1u : 1 + 2 * 3u);
}

RANK_FUNCTION(limit_of_five) {
  const Meter meter(rank);
  constexpr std::uint64_t kMostBytes = 32 << 10;
  constexpr std::int64_t kMost = kMostBytes / 4;
  at::Tensor just = at::ones({kMost}), more = at::ones({kMost + 1});
  meter.group().all_reduce(just, ReduceOp::kSum, Rank::call("x")).wait();
  meter.expect("all_reduce of 4 x 32 KiB", {4 * kMostBytes, 1});
  meter.group().all_reduce(more, ReduceOp::kSum, Rank::call("x")).wait();
  EXPECT_EQ(meter.last().steps, 1 + 2u);
}

TEST(Traffic, OfSharedMemory) {
  expect_ranks("limit_of_five", 5, {.engine = "shm"});
  for (const int size : {2, 3, 4}) {
    expect_ranks("bytes_shared", size, {.engine = "shm"});
    expect_ranks("bytes_through_windows", size, {.engine = "shm"});
  }
}

}  // namespace
}  // namespace troika::test
