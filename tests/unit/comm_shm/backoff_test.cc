// A waiter spins only where that takes no core from a rank that it waits for.
#include <gtest/gtest.h>
#include <troika/comm/shm/backoff.h>

namespace troika::shm {
namespace {

TEST(Backoff, SpinsWithACoreForEach) {
  for (const auto& [ranks, cores] : {std::pair{2, 2}, {2, 3}, {64, 64}, {2, 128}}) {
    const ShmGroup::Backoff backoff = backoff_for(ranks, cores);
    EXPECT_GT(backoff.spin.count(), 0) << ranks << " on " << cores;
    EXPECT_GT(backoff.yield, backoff.spin) << ranks << " on " << cores;
  }
}

TEST(Backoff, YieldsAtOnceWhereRanksShareCores) {
  for (const auto& [ranks, cores] : {std::pair{2, 1}, {3, 2}, {65, 64}, {128, 2}}) {
    const ShmGroup::Backoff backoff = backoff_for(ranks, cores);
    EXPECT_EQ(backoff.spin.count(), 0) << ranks << " on " << cores;
    EXPECT_GT(backoff.yield.count(), 0) << ranks << " on " << cores;
  }
}

// A waiter wakes up once in a while in either case.
TEST(Backoff, EndsInASleepThatEnds) {
  for (const int cores : {1, 2}) {
    EXPECT_GT(backoff_for(2, cores).sleep.count(), 0);
    EXPECT_LE(backoff_for(2, cores).sleep.count(), 1);
  }
}

}  // namespace
}  // namespace troika::shm
