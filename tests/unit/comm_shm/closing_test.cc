// What becomes of the memory of an operation that fails while others are at it.
#include <gtest/gtest.h>
#include <troika/base/failure_timing.h>

#include <atomic>
#include <thread>

#include "members.h"
#include "sums.h"

namespace troika::shm::testing {
namespace {

// One member reduces only once the other has closed its memory.
struct BlockedReduction {
  std::atomic<bool> reducing = false, closed = false;
  void close() {
    closed = true;
    closed.notify_all();
  }
  [[nodiscard]] auto reducer() {
    return [this](std::span<const std::byte* const> views, std::byte* out, std::size_t bytes) {
      reducing = true;
      reducing.notify_all();
      closed.wait(false);
      kReduce(views, out, bytes);
    };
  }
};

// Two members sum in memory for all; `body(member, group, collective, arenas)` begins once the
// member has shown its part.
template <class Body>
void sum_of_two(const Body& body) {
  constexpr std::size_t kCount = 300'007;
  Members members(2);
  Arenas arenas(2, kCount);
  const FindSegment find = arenas.find();
  members.run([&](int member, ShmGroup& group) {
    arenas.of(member) = values_of(member, kCount, 1);
    Collective collective(group, find, 1, signed_as(kCount), contribution(arenas.of(member), true));
    collective.announce("sum", soon());
    body(member, group, collective, arenas);
  });
}

// Member 0 aborts while member 1 reduces: its tensor is its caller's again, and stays as it is.
TEST(Closing, KeepsOthersOutOfTheMemoryOfAFailedOperation) {
  BlockedReduction blocked;
  sum_of_two([&](int member, ShmGroup& group, Collective& collective, Arenas& arenas) {
    if (member == 1) {
      EXPECT_THROW(collective.reduce(blocked.reducer(), 4, Deadline::in(Seconds(0.2))), TimedOut);
      return;
    }
    blocked.reducing.wait(false);
    group.close();
    const Values kept = arenas.of(0);
    blocked.close();
    group.wait(
        [&] {
          return group.control_block(1).operation(1).progress.load() ==
                 Progress::at(1, Progress::kDone);
        },
        [] { return std::vector{1}; }, soon());
    EXPECT_EQ(arenas.of(0), kept);
    EXPECT_EQ(kept, values_of(0, kept.size(), 1));
  });
}

// Member 0 fails in something else while both are in a sum, of which member 1 hands it no part
// any more: neither takes that for the sum.
TEST(Closing, IsNotOverlookedByOperationsUnderWay) {
  BlockedReduction blocked;
  sum_of_two([&](int member, ShmGroup& group, Collective& collective, Arenas&) {
    if (member == 1) {
      EXPECT_THROW(collective.reduce(blocked.reducer(), 4, soon()), Broken);
      return;
    }
    blocked.reducing.wait(false);
    group.abort("an exchange has failed");
    group.close();
    blocked.close();
    EXPECT_THROW(collective.reduce(kReduce, 4, soon()), Broken);
  });
}

TEST(Closing, WaitsForThoseWhoWriteButNotForEver) {
  Members members(2);
  std::atomic<bool> closed = false;
  std::thread closing;
  {
    const ShmGroup::Writing writing(members.group(1), 0);
    EXPECT_TRUE(writing.allowed());
    closing = std::thread([&] {
      members.group(0).close();
      closed = true;
    });
    while (members.group(0).own().closed().load() == 0) std::this_thread::yield();
    EXPECT_FALSE(closed);
    EXPECT_FALSE(ShmGroup::Writing(members.group(1), 0).allowed());
  }
  closing.join();
  const ShmGroup::Writing stopped(members.group(0), 1);
  const auto start = Clock::now();
  members.group(1).close();
  EXPECT_GE(Seconds(Clock::now() - start), failure_timing::kPeerWriters);
}

}  // namespace
}  // namespace troika::shm::testing
