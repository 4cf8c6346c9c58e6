// What a member does of a reduction in memory for all before any thread waits for it.
#include <gtest/gtest.h>

#include "members.h"
#include "sums.h"

namespace troika::shm::testing {
namespace {

// One thread for two members: what waits for the other ends the test.
class Early : public ::testing::Test {
 protected:
  static constexpr std::size_t kCount = 10'007;

  Collective announced(int member, bool in_memory_for_all = true) {
    arenas_.of(member) = values_of(member, kCount, 1);
    Collective collective(members_.group(member), find_, 1, signed_as(kCount),
                          contribution(arenas_.of(member), in_memory_for_all));
    collective.announce("sum", soon());
    return collective;
  }
  static bool early(Collective& collective) {
    return collective.reduce_early(kReduce, sizeof(std::uint32_t), soon());
  }

  Members members_{2};
  Arenas arenas_{2, kCount};
  FindSegment find_ = arenas_.find();
};

TEST_F(Early, IsNothingUntilAllAreThere) {
  Collective first = announced(0);
  EXPECT_FALSE(early(first));
  EXPECT_EQ(arenas_.of(0), values_of(0, kCount, 1));
}

TEST_F(Early, IsOnesOwnPartAndLastOfAllEverything) {
  Collective first = announced(0), second = announced(1);
  const Values sums = sums_of(2, kCount, 1);
  EXPECT_FALSE(early(second));
  for (int member = 0; member < 2; ++member) {
    const Values& values = arenas_.of(member);
    EXPECT_TRUE(
        std::equal(values.begin() + kCount / 2 + 64, values.end(), sums.begin() + kCount / 2 + 64))
        << member;
    EXPECT_EQ(values[0], value_of(member, 0, 1));
  }
  EXPECT_TRUE(early(first));
  second.reduce(kReduce, sizeof(std::uint32_t), soon());
  EXPECT_EQ(arenas_.of(0), sums);
  EXPECT_EQ(arenas_.of(1), sums);
}

// Its copy does the rest, as the queue's does.
TEST_F(Early, IsKnownToCopies) {
  Collective first = announced(0), second = announced(1);
  EXPECT_FALSE(early(second));
  Collective copy = second;
  first.reduce(kReduce, sizeof(std::uint32_t), soon());
  copy.reduce(kReduce, sizeof(std::uint32_t), soon());
  EXPECT_EQ(arenas_.of(1), sums_of(2, kCount, 1));
}

TEST_F(Early, IsNothingWhereOthersHaveMemoryOfTheirOwn) {
  Collective first = announced(0), second = announced(1, false);
  EXPECT_FALSE(early(first));
  EXPECT_FALSE(early(second));
  EXPECT_EQ(arenas_.of(0), values_of(0, kCount, 1));
  EXPECT_EQ(arenas_.of(1), values_of(1, kCount, 1));
}

TEST_F(Early, FindsAnotherOperation) {
  Collective first = announced(0);
  arenas_.of(1) = values_of(1, kCount, 1);
  Collective other(members_.group(1), find_, 1, signed_as(1), contribution(arenas_.of(1), true));
  other.announce("another", soon());
  EXPECT_THROW((void)early(first), Mismatch);
  EXPECT_EQ(arenas_.of(1), values_of(1, kCount, 1));
}

TEST_F(Early, IsFollowedByWhatHasBecomeOfTheOthers) {
  (void)announced(0);
  Collective second = announced(1);
  EXPECT_FALSE(early(second));
  EXPECT_THROW(second.reduce(kReduce, sizeof(std::uint32_t), Deadline::in(Seconds(0))), TimedOut);
  members_.group(0).abort("an exchange has failed");
  EXPECT_THROW(second.reduce(kReduce, sizeof(std::uint32_t), soon()), Broken);
}

// Its owner has been given its memory back: neither writes to it, nor takes that for a sum.
TEST_F(Early, LeavesClosedMemoryAlone) {
  (void)announced(0);
  Collective second = announced(1);
  members_.group(0).abort("an exchange has failed");
  members_.group(0).close();
  EXPECT_FALSE(early(second));
  EXPECT_EQ(arenas_.of(0), values_of(0, kCount, 1));
  EXPECT_THROW(second.reduce(kReduce, sizeof(std::uint32_t), soon()), Broken);
}

}  // namespace
}  // namespace troika::shm::testing
