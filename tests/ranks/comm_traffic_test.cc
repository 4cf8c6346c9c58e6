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
constexpr std::int64_t kSmall = 24;                       // fp32: 96 bytes
constexpr std::int64_t kLarge = std::int64_t{12} << 14;   // fp32: 768 KiB
constexpr std::int64_t kMedium = std::int64_t{12} << 11;  // fp32: 96 KiB
constexpr std::uint64_t kMediumBytes = kMedium * 4;
constexpr std::uint64_t kSmallBytes = kSmall * 4, kLargeBytes = kLarge * 4;

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
  group.barrier(Rank::call("x")).wait();
  meter.expect("barrier", {depth, static_cast<std::uint32_t>(depth)});
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
  at::Tensor medium = at::ones({kMedium});
  group.all_reduce(medium, ReduceOp::kSum, Rank::call("in large slots")).wait();
  meter.expect("all_reduce at once", {(n - 1) * kMediumBytes, 1});
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
  group.barrier(Rank::call("x")).wait();
  expect_first("barrier", {1, 1});
}

TEST(Traffic, BetweenHosts) {
  expect_ranks("bytes_between_hosts", 4, {.pretend = Pretend::kTwoHostsInTurn});
}

TEST(Traffic, OfMessages) {
  for (const int size : {2, 3, 4})
    expect_ranks("messages_sent", size, {.engine = EngineKind::kGloo});
}

TEST(Traffic, OfSharedMemory) {
  for (const int size : {2, 3, 4}) expect_ranks("bytes_shared", size, {.engine = EngineKind::kShm});
}

}  // namespace
}  // namespace troika::test
