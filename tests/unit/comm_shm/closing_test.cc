// What becomes of the memory of an operation that fails while others are at it.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "members.h"
#include "sums.h"

namespace troika::shm::testing {
namespace {

// One member folds only once the other has closed its memory.
struct Meeting {
  std::atomic<bool> folds = false, closed = false;
  void close() {
    closed = true;
    closed.notify_all();
  }
  [[nodiscard]] auto late_fold() {
    return [this](std::span<const std::byte* const> views, std::byte* out, std::size_t bytes) {
      folds = true;
      folds.notify_all();
      closed.wait(false);
      kFold(views, out, bytes);
    };
  }
};

// Two members sum in memory for all; `body(member, party, collective, arenas)` begins once the
// member has shown its part.
template <class Body>
void sum_of_two(const Body& body) {
  constexpr std::size_t kCount = 300'007;
  Members members(2);
  Arenas arenas(2, kCount);
  const FindSegment find = arenas.find();
  members.run([&](int member, Party& party) {
    arenas.of(member) = values_of(member, kCount, 1);
    Collective collective(party, find, 1, signed_as(kCount), contribution(arenas.of(member), true));
    collective.announce("sum", soon());
    body(member, party, collective, arenas);
  });
}

// Member 0 gives up while member 1 folds: its tensor is its caller's again, and stays as it is.
TEST(Closing, KeepsOthersOutOfTheMemoryOfAFailedOperation) {
  Meeting meeting;
  sum_of_two([&](int member, Party& party, Collective& collective, Arenas& arenas) {
    if (member == 1) {
      EXPECT_THROW(collective.reduce(meeting.late_fold(), 4, Deadline::in(Seconds(0.2))), Late);
      return;
    }
    meeting.folds.wait(false);
    party.close();
    const Values kept = arenas.of(0);
    meeting.close();
    party.wait(
        [&] {
          return party.board(1).operation(1).progress.load() == Progress::at(1, Progress::kDone);
        },
        [] { return std::vector{1}; }, soon());
    EXPECT_EQ(arenas.of(0), kept);
    EXPECT_EQ(kept, values_of(0, kept.size(), 1));
  });
}

// Member 0 fails in something else while both are in a sum, of which member 1 hands it no part
// any more: neither takes that for the sum.
TEST(Closing, IsNotOverlookedByOperationsUnderWay) {
  Meeting meeting;
  sum_of_two([&](int member, Party& party, Collective& collective, Arenas&) {
    if (member == 1) {
      EXPECT_THROW(collective.reduce(meeting.late_fold(), 4, soon()), Broken);
      return;
    }
    meeting.folds.wait(false);
    party.give_up("an exchange has failed");
    party.close();
    meeting.close();
    EXPECT_THROW(collective.reduce(kFold, 4, soon()), Broken);
  });
}

TEST(Closing, WaitsForThoseWhoWriteButNotForEver) {
  Members members(2);
  std::atomic<bool> closed = false;
  std::thread closing;
  {
    const Party::Writing writing(members.party(1), 0);
    EXPECT_TRUE(writing.allowed());
    closing = std::thread([&] {
      members.party(0).close();
      closed = true;
    });
    while (members.party(0).own().closed().load() == 0) std::this_thread::yield();
    EXPECT_FALSE(closed);
    EXPECT_FALSE(Party::Writing(members.party(1), 0).allowed());
  }
  closing.join();
  const Party::Writing stopped(members.party(0), 1);
  const auto start = Clock::now();
  members.party(1).close();
  EXPECT_GE(Seconds(Clock::now() - start), Party::kForWriters);
}

}  // namespace
}  // namespace troika::shm::testing
