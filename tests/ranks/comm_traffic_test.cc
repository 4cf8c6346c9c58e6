// What the algorithms put on the wire and how often a member waits for the others, as
// docs/engines.md states it, read from the flight recorder: messages, and between hosts.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/observe/recorder.h>

#include <functional>
#include <numeric>
#include <string>

#include "ranks/comm_meter.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

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

// Across two hosts of two ranks each: a leader's 12 MiB, in blocks of 4 MiB and segments of 1 MiB.
void check_larger_messages_between_hosts(const Meter& meter, bool sends_half) {
  const Group& group = meter.group();
  at::Tensor huge = at::ones({kHuge}), own = at::ones({kHuge / 4});
  group.all_reduce(huge, ReduceOp::kSum, Rank::call("in several blocks")).wait();
  meter.expect("all_reduce in several blocks", {2 * kHugeBytes / 2 / 2, 1 + 2});
  group.reduce_scatter(own, huge, ReduceOp::kSum, Rank::call("in several blocks")).wait();
  meter.expect("reduce_scatter in several blocks",
               sends_half ? Traffic{kHugeBytes / 2, 0} : Traffic{0, 3});
  constexpr std::uint64_t kSegments = 3;
  at::Tensor segments = huge.narrow(0, 0, std::int64_t{kSegments} << 18);
  group.broadcast(segments, 0, Rank::call("in segments")).wait();
  meter.expect("broadcast in segments", {group.rank() == 0 ? kSegments << 20 : 0,
                                         group.rank() == 1 ? std::uint32_t{kSegments} : 0});
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
  meter.expect("all_reduce by two leaders", {2 * kLargeBytes / 2 / 2, 2});
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

  // Each leader has what one host keeps: there it is received, and from the other one sent. Sums
  // of 16-bit floats are twice as large.
  const bool sends_half = rank.index() == 1 || rank.index() == 2;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor kept = at::ones({kLarge / 4}, dtype);
    group.reduce_scatter(kept, at::ones({kLarge}, dtype), ReduceOp::kAverage, Rank::call("in fp32"))
        .wait();
    meter.expect("reduce_scatter in fp32",
                 sends_half ? Traffic{kLargeBytes / 2, 0} : Traffic{0, 1});
  }
  // One leader up to 64 KiB, and then two.
  at::Tensor just = at::ones({(64 << 10) / 4}), more = at::ones({(64 << 10) / 4 + 4});
  group.all_reduce(just, ReduceOp::kSum, Rank::call("x")).wait();
  expect_first("all_reduce of 64 KiB", {64 << 10, 1});
  group.all_reduce(more, ReduceOp::kSum, Rank::call("x")).wait();
  meter.expect("all_reduce of more", {(64 << 10) / 2 + 8, 1});
  check_larger_messages_between_hosts(meter, sends_half);
}

// Across H hosts whose ranks are numbered in turn: what the recorders of a host's ranks add up to
// is what docs/engines.md says that a host sends.
class HostMeter {
 public:
  HostMeter(Rank& rank, std::uint64_t hosts) : rank_(rank), meter_(rank), hosts_(hosts) {}

  [[nodiscard]] const Group& group() const { return meter_.group(); }
  [[nodiscard]] std::uint64_t hosts() const { return hosts_; }
  [[nodiscard]] std::uint64_t host() const {
    return static_cast<std::uint64_t>(rank_.index()) % hosts_;
  }
  // Of the last operation: the bytes sent by this rank's host, and the most steps of any rank.
  void expect(const std::string& what, Traffic expected) {
    const Traffic own = meter_.last();
    EXPECT_LE(own.steps, expected.steps) << what << " on member " << rank_.index();
    const std::string key = what + " of host " + std::to_string(host());
    (void)rank_.store().add(key, static_cast<std::int64_t>(own.sent));
    if (own.steps == expected.steps) (void)rank_.store().add(what + " in full", 1);
    rank_.wait_for_all(what);
    EXPECT_EQ(static_cast<std::uint64_t>(rank_.store().add(key, 0)), expected.sent) << key;
    EXPECT_GE(rank_.store().add(what + " in full", 0), 1) << what << " takes fewer steps";
  }

 private:
  Rank& rank_;
  Meter meter_;
  std::uint64_t hosts_;
};

// Divides by every number of hosts and ranks there; through one leader, and through more.
void check_reductions_of_hosts(HostMeter& meter) {
  const Group& group = meter.group();
  const std::uint64_t h = meter.hosts();
  at::Tensor small = at::ones({kSmall}), large = at::ones({kLarge});
  group.all_reduce(small, ReduceOp::kSum, Rank::call("x")).wait();
  meter.expect("all_reduce at once", {(h - 1) * kSmallBytes, 1});
  group.all_reduce(large, ReduceOp::kSum, Rank::call("x")).wait();
  meter.expect("all_reduce in blocks", {2 * (h - 1) * kLargeBytes / h, 2});
  at::Tensor narrow = at::ones({kLarge}, at::kBFloat16);
  group.all_reduce(narrow.narrow(0, 0, kSmall), ReduceOp::kSum, Rank::call("x")).wait();
  meter.expect("all_reduce of bf16 at once", {2 * (h - 1) * (kSmallBytes / 2), 1});
  group.all_reduce(narrow, ReduceOp::kSum, Rank::call("x")).wait();
  meter.expect("all_reduce of bf16", {3 * (h - 1) * (kLargeBytes / 2) / h, 2});
  for (const std::int64_t elements : {kSmall, kLarge}) {
    const auto bytes = static_cast<std::uint64_t>(elements) * 4;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      at::Tensor own = at::ones({elements / group.size()}, dtype);
      group.reduce_scatter(own, at::ones({elements}, dtype), ReduceOp::kSum, Rank::call("x"))
          .wait();
      // bf16 travels as fp32, so both send as many bytes.
      meter.expect("reduce_scatter of " + std::to_string(elements) + " " + c10::toString(dtype),
                   {(h - 1) * bytes / h, 1});
    }
  }
}

// On both sides of where all_reduce takes a step more, in a leader's share: 256 KiB for all other
// hosts together, and 64 KiB of what is summed in fp32. Both numbers of elements divide as above.
void check_limits_between_hosts(HostMeter& meter) {
  const Group& group = meter.group();
  const std::uint64_t h = meter.hosts();
  const std::int64_t leaders = group.size() / static_cast<std::int64_t>(h);
  const auto most = leaders * (256 << 10) / static_cast<std::int64_t>(h - 1) / 4;
  const auto most_narrow = leaders * (64 << 10) / 4;
  const auto reduce = [&](std::int64_t elements, at::ScalarType dtype) {
    const at::Tensor tensor = at::ones({elements}, dtype);
    group.all_reduce(tensor, ReduceOp::kSum, Rank::call("x")).wait();
    return tensor.nbytes();
  };
  const std::int64_t more = leaders * static_cast<std::int64_t>(h);
  const auto above = [more](std::int64_t limit) { return (limit / more + 1) * more; };
  const std::uint64_t just = reduce(most, at::kFloat);
  meter.expect("all_reduce just at once", {(h - 1) * just, 1});
  const std::uint64_t not_just = reduce(above(most), at::kFloat);
  meter.expect("all_reduce not at once", {2 * (h - 1) * not_just / h, 2});
  const std::uint64_t just_narrow = reduce(most_narrow, at::kBFloat16);
  meter.expect("all_reduce of bf16 just at once", {2 * (h - 1) * just_narrow, 1});
  const std::uint64_t not_narrow = reduce(above(most_narrow), at::kBFloat16);
  meter.expect("all_reduce of bf16 not at once", {3 * (h - 1) * not_narrow / h, 2});
}

// What a host has for other hosts if each of its members has `part` bytes for each other member.
void check_movements_of_hosts(HostMeter& meter) {
  const Group& group = meter.group();
  const std::uint64_t h = meter.hosts(), n = static_cast<std::uint64_t>(group.size());
  const std::uint64_t here = n / h, far = n - here, part = kSmallBytes / n;
  const bool first = meter.host() == 0;
  at::Tensor small = at::ones({kSmall}), other = at::ones({kSmall});
  at::Tensor few = at::ones({kSmall / group.size()});
  group.all_gather(small, few, Rank::call("x")).wait();
  meter.expect("all_gather", {(h - 1) * here * part, 1});
  // A tree of three hosts from the second one, which sends to both others.
  group.broadcast(small, 1, Rank::call("x")).wait();
  meter.expect("broadcast", {meter.host() == 1 ? 2 * kSmallBytes : 0, 1});
  const std::vector<std::int64_t> counts(n, kSmall / group.size());
  group.all_to_all(other, counts, small, counts, Rank::call("x")).wait();
  meter.expect("all_to_all", {here * far * (part + 16), 2});
  group.gather(small, few, 0, Rank::call("x")).wait();
  // Both sides of a pair tell its size; only one of them has anything to send.
  meter.expect("gather", {first ? far * 16 : here * (part + 16), 2});
  group.scatter(few, small, 0, Rank::call("x")).wait();
  meter.expect("scatter", {first ? far * (part + 16) : here * 16, 2});
  pass_on(group, small);
  meter.expect("exchange", {here * kSmallBytes, 1});
  group.barrier(Rank::call("x")).wait();
  meter.expect("barrier", {2, 2});  // log2 of 3, rounded up
}

RANK_FUNCTION(bytes_between_three_hosts) {
  HostMeter meter(rank, 3);
  ASSERT_EQ(meter.group().engine_name(), "shm+gloo");
  check_reductions_of_hosts(meter);
  check_limits_between_hosts(meter);
  check_movements_of_hosts(meter);
}

TEST(Traffic, BetweenThreeHosts) {
  expect_ranks("bytes_between_three_hosts", 6, {.pretend = Pretend::kThreeHostsInTurn});
}

TEST(Traffic, BetweenHosts) {
  expect_ranks("bytes_between_hosts", 4, {.pretend = Pretend::kTwoHostsInTurn});
}

TEST(Traffic, OfMessages) {
  for (const int size : {2, 3, 4}) expect_ranks("messages_sent", size, {.engine = "gloo"});
}

TEST(Traffic, OfMessagesOverMpi) {
  const std::vector<TestedEngine> engines = tested_mpi_engines();
  if (engines.empty()) GTEST_SKIP() << "there is no MPI with a plug-in and an mpirun";
  for (const TestedEngine& engine : engines) {
    SCOPED_TRACE(engine.name);
    expect_ranks("messages_sent", 3, engine.options);
  }
}

}  // namespace
}  // namespace troika::test
