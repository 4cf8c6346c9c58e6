// What the algorithms put on the wire and how often a member waits for the others, as
// docs/engines.md states it, read from the flight recorder.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/observe/recorder.h>

#include <functional>
#include <numeric>

#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

struct Traffic {
  std::uint64_t sent;
  std::uint32_t steps;
};

class Meter {
 public:
  explicit Meter(const Rank& rank)
      : path_(recorder_path(rank.folder(), rank.index())), group_(watched_group(rank)) {}

  [[nodiscard]] const Group& group() const { return group_; }
  [[nodiscard]] std::uint64_t size() const { return static_cast<std::uint64_t>(group_.size()); }

  // That of the last operation.
  [[nodiscard]] Traffic last() const {
    const RecordedOperation operation = read_recorder(path_).operations.back();
    EXPECT_EQ(operation.state, RecordedOperation::State::kFinished);
    return {operation.sent, operation.steps};
  }
  void expect(const char* what, Traffic expected) const {
    const Traffic found = last();
    EXPECT_EQ(found.sent, expected.sent) << what << " on member " << group_.rank();
    EXPECT_EQ(found.steps, expected.steps) << what << " on member " << group_.rank();
  }

 private:
  [[nodiscard]] Group watched_group(const Rank& rank) const {
    EngineOptions options = rank.options();
    options.observers.recorder = Recorder::create(path_, rank.index(), "here");
    std::vector<int> ranks(static_cast<std::size_t>(rank.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return make_group("data", ranks, rank.index(), options);
  }

  std::filesystem::path path_;
  Group group_;
};

// Divides by every number of members up to 4, and fits into one block and one window's parts.
constexpr std::int64_t kSmall = 24;                      // fp32: 96 bytes
constexpr std::int64_t kLarge = std::int64_t{12} << 14;  // fp32: 768 KiB
constexpr std::int64_t kMedium = std::int64_t{12} << 9;  // fp32: 24 KiB
constexpr std::uint64_t kMediumBytes = kMedium * 4;
constexpr std::uint64_t kSmallBytes = kSmall * 4, kLargeBytes = kLarge * 4;
constexpr std::int64_t kHuge = std::int64_t{12} << 19;  // fp32: 24 MiB
constexpr std::uint64_t kHugeBytes = kHuge * 4;

// Everybody sends to the next member.
void pass_on(const Group& group, const at::Tensor& tensor) {
  const at::Tensor received = at::empty_like(tensor);
  const Transfer transfers[] = {
      {Transfer::Direction::kSend, (group.rank() + 1) % group.size(), tensor},
      {Transfer::Direction::kReceive, (group.rank() + group.size() - 1) % group.size(), received}};
  group.exchange(transfers, Rank::call("x")).wait();
}

// Messages: what takes a step more for each further block of 4 MiB or segment of 1 MiB, and
// all_reduce on both sides of where it takes one step.
void check_larger_messages(const Meter& meter, std::uint64_t depth) {
  const Group& group = meter.group();
  const std::uint64_t n = meter.size();
  const auto part = kHuge / group.size();
  const auto blocks = static_cast<std::uint32_t>((part * 4 + (4 << 20) - 1) / (4 << 20));
  at::Tensor huge = at::ones({kHuge}), own = at::ones({part});
  group.all_reduce(huge, ReduceOp::kSum, Rank::call("in several blocks")).wait();
  meter.expect("all_reduce in several blocks", {2 * (n - 1) * kHugeBytes / n, blocks + 1});
  group.reduce_scatter(own, huge, ReduceOp::kSum, Rank::call("in several blocks")).wait();
  meter.expect("reduce_scatter in several blocks", {(n - 1) * kHugeBytes / n, blocks});
  constexpr std::uint32_t kSegments = 3;
  constexpr std::int64_t kSegment = std::int64_t{1} << 18;  // fp32: 1 MiB
  at::Tensor segments = huge.narrow(0, 0, kSegments * kSegment);
  group.broadcast(segments, 0, Rank::call("in segments")).wait();
  if (group.rank() == 0) {
    meter.expect("broadcast in segments", {depth * kSegments << 20, 0});
  } else {
    EXPECT_EQ(meter.last().steps, kSegments);
  }

  const auto most = static_cast<std::int64_t>((256 << 10) / (n - 1) / 4);
  at::Tensor just = at::ones({most}), more = at::ones({most + 1});
  group.all_reduce(just, ReduceOp::kSum, Rank::call("just at once")).wait();
  meter.expect("all_reduce just at once", {(n - 1) * static_cast<std::uint64_t>(most) * 4, 1});
  group.all_reduce(more, ReduceOp::kSum, Rank::call("not at once")).wait();
  EXPECT_EQ(meter.last().steps, 2u);
  // Parts differ by an element.
  EXPECT_NEAR(
      static_cast<double>(meter.last().sent),
      8. * static_cast<double>(most + 1) * static_cast<double>(n - 1) / static_cast<double>(n),
      4. * static_cast<double>(n));
}

RANK_FUNCTION(messages_sent) {
  const Meter meter(rank);
  const Group& group = meter.group();
  const std::uint64_t n = meter.size(), own = static_cast<std::uint64_t>(rank.index());
  at::Tensor small = at::ones({kSmall}), large = at::ones({kLarge});
  const auto part = kSmall / rank.size();
  at::Tensor few = at::ones({part});

  group.all_reduce(small, ReduceOp::kSum, Rank::call("at once")).wait();
  meter.expect("all_reduce at once", {(n - 1) * kSmallBytes, 1});
  group.all_reduce(large, ReduceOp::kSum, Rank::call("in blocks")).wait();
  meter.expect("all_reduce in blocks", {2 * (n - 1) * kLargeBytes / n, 2});
  group.reduce_scatter(few, small, ReduceOp::kSum, Rank::call("x")).wait();
  meter.expect("reduce_scatter", {(n - 1) * kSmallBytes / n, 1});
  group.all_gather(small, few, Rank::call("x")).wait();
  meter.expect("all_gather", {(n - 1) * kSmallBytes / n, 1});  // N bytes are its part
  const std::vector<std::int64_t> counts(n, part);
  at::Tensor other = at::ones({kSmall});
  group.all_to_all(other, counts, small, counts, Rank::call("x")).wait();
  meter.expect("all_to_all", {(n - 1) * (kSmallBytes / n + 16), 2});
  group.gather(small, few, 0, Rank::call("x")).wait();
  meter.expect("gather", {own == 0 ? 0 : kSmallBytes / n, own == 0 ? 1u : 0u});
  group.scatter(few, small, 0, Rank::call("x")).wait();
  meter.expect("scatter", {own == 0 ? (n - 1) * kSmallBytes / n : 0, own == 0 ? 0u : 1u});
  group.broadcast(small, 0, Rank::call("x")).wait();
  std::uint64_t depth = 0;
  while ((1u << depth) < n) ++depth;
  if (own == 0) meter.expect("broadcast", {depth * kSmallBytes, 0});
  if (own != 0) {
    EXPECT_EQ(meter.last().steps, 1u);
  }
  pass_on(group, small);
  meter.expect("exchange", {kSmallBytes, 1});
  group.barrier(Rank::call("x")).wait();
  meter.expect("barrier", {depth, static_cast<std::uint32_t>(depth)});
  check_larger_messages(meter, depth);
}

// Who has given something by windows, and who has not and looks that nobody reads any more.
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
// it there; else whoever has it there waits until the others have read it.
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
}

// Shared memory: who receives before the others have sent waits once, and who has sent what fits
// into the channel waits for nobody.
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
  at::Tensor small = at::ones({kSmall}), large = at::ones({kLarge});
  const at::Tensor arena = group.allocate(kLargeBytes).view(at::kFloat);
  const auto part = kSmall / rank.size();
  at::Tensor few = at::ones({part});

  group.all_reduce(small, ReduceOp::kSum, Rank::call("in slots")).wait();
  meter.expect("all_reduce at once", {(n - 1) * kSmallBytes, 1});
  group.all_reduce(arena, ReduceOp::kSum, Rank::call("in place")).wait();
  meter.expect("all_reduce in memory for all", {2 * (n - 1) * kLargeBytes / n, 2});
  group.all_reduce(large, ReduceOp::kSum, Rank::call("through windows")).wait();
  // Members fold whole lines of the cache, so parts differ by a line in each of three windows.
  EXPECT_NEAR(static_cast<double>(meter.last().sent),
              2. * static_cast<double>((n - 1) * kLargeBytes) / static_cast<double>(n),
              2. * 64 * 3);
  // Entered; filled and taken, three times. Of two, nobody waits for the last two to be taken.
  EXPECT_EQ(meter.last().steps, n == 2 ? 2 * 3 - 1u : 1 + 2 * 3u);
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

// Across two hosts of two ranks each: what goes from host to host.
RANK_FUNCTION(bytes_between_hosts) {
  const Meter meter(rank);
  const Group& group = meter.group();
  const bool first = rank.index() < 2;  // of its host
  at::Tensor small = at::ones({kSmall}), large = at::ones({kLarge});
  at::Tensor few = at::ones({kSmall / 4});
  const auto expect_first = [&](const char* what, Traffic traffic) {
    meter.expect(what, first ? traffic : Traffic{0, 0});
  };
  group.all_reduce(small, ReduceOp::kSum, Rank::call("small")).wait();
  expect_first("all_reduce", {kSmallBytes, 1});
  group.all_reduce(large, ReduceOp::kSum, Rank::call("large")).wait();
  meter.expect("all_reduce by two carriers", {2 * kLargeBytes / 2 / 2, 2});
  at::Tensor narrow = at::ones({kLarge}, at::kBFloat16);
  group.all_reduce(narrow, ReduceOp::kSum, Rank::call("16-bit floats")).wait();
  meter.expect("all_reduce in fp32 there, in bf16 back", {kLargeBytes / 4 + kLargeBytes / 8, 2});
  group.reduce_scatter(few, small, ReduceOp::kSum, Rank::call("x")).wait();
  expect_first("reduce_scatter", {kSmallBytes / 2, 1});
  group.all_gather(small, few, Rank::call("x")).wait();
  expect_first("all_gather", {kSmallBytes / 2, 1});
  group.broadcast(small, 2, Rank::call("x")).wait();
  const bool sends = rank.index() == 0, receives = rank.index() == 1;
  meter.expect("broadcast", {sends ? kSmallBytes : 0, receives ? 1u : 0u});
  const std::vector<std::int64_t> counts(4, kSmall / 4);
  at::Tensor other = at::ones({kSmall});
  group.all_to_all(other, counts, small, counts, Rank::call("x")).wait();
  meter.expect("all_to_all", {kSmallBytes / 2 + 2 * 16, 2});  // 16: the sizes of a pair
  group.gather(small, few, 0, Rank::call("x")).wait();
  const bool far = rank.index() % 2 == 1;
  meter.expect("gather", far                 ? Traffic{kSmallBytes / 4 + 16, 1}
                         : rank.index() == 0 ? Traffic{2 * 16, 2}
                                             : Traffic{0, 0});
  group.scatter(few, small, 0, Rank::call("x")).wait();
  meter.expect("scatter", far                 ? Traffic{16, 2}
                          : rank.index() == 0 ? Traffic{2 * (kSmallBytes / 4 + 16), 1}
                                              : Traffic{0, 0});
  pass_on(group, small);
  meter.expect("exchange with the other host", {kSmallBytes, 1});
  const int neighbour = (rank.index() + 2) % 4;
  const Transfer inside[] = {{Transfer::Direction::kSend, neighbour, small},
                             {Transfer::Direction::kReceive, neighbour, other}};
  group.exchange(inside, Rank::call("x")).wait();
  meter.expect("exchange inside a host", {0, 0});
  group.barrier(Rank::call("x")).wait();
  expect_first("barrier", {1, 1});

  // Each carrier has what one host keeps: there it is received, and from the other one sent. Sums
  // of 16-bit floats are twice as large.
  const bool sends_half = rank.index() == 1 || rank.index() == 2;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor kept = at::ones({kLarge / 4}, dtype);
    group.reduce_scatter(kept, at::ones({kLarge}, dtype), ReduceOp::kAverage, Rank::call("in fp32"))
        .wait();
    meter.expect("reduce_scatter in fp32",
                 sends_half ? Traffic{kLargeBytes / 2, 0} : Traffic{0, 1});
  }
  // One carrier up to 64 KiB, and then two.
  at::Tensor just = at::ones({(64 << 10) / 4}), more = at::ones({(64 << 10) / 4 + 4});
  group.all_reduce(just, ReduceOp::kSum, Rank::call("x")).wait();
  expect_first("all_reduce of 64 KiB", {64 << 10, 1});
  group.all_reduce(more, ReduceOp::kSum, Rank::call("x")).wait();
  meter.expect("all_reduce of more", {(64 << 10) / 2 + 8, 1});
}

TEST(Traffic, BetweenHosts) {
  expect_ranks("bytes_between_hosts", 4, {.pretend = Pretend::kTwoHostsInTurn});
}

TEST(Traffic, OfMessages) {
  for (const int size : {2, 3, 4})
    expect_ranks("messages_sent", size, {.engine = EngineKind::kGloo});
}

TEST(Traffic, OfMessagesOverMpi) {
  std::vector<TestedEngine> engines = tested_engines();
  std::erase_if(engines, [](const TestedEngine& engine) { return engine.options.mpirun.empty(); });
  if (engines.empty()) GTEST_SKIP() << "there is no MPI with a plug-in and an mpirun";
  for (const TestedEngine& engine : engines) {
    SCOPED_TRACE(engine.name);
    expect_ranks("messages_sent", 3, engine.options);
  }
}

TEST(Traffic, OfSharedMemory) {
  expect_ranks("limit_of_five", 5, {.engine = EngineKind::kShm});
  for (const int size : {2, 3, 4}) expect_ranks("bytes_shared", size, {.engine = EngineKind::kShm});
}

}  // namespace
}  // namespace troika::test
