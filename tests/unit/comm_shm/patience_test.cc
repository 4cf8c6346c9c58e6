// Who waits looks again and again only where that takes no core from a rank that is waited for.
#include <gtest/gtest.h>
#include <troika/comm/shm/patience.h>

namespace troika::shm {
namespace {

TEST(Patience, LooksAgainAndAgainWithACoreForEach) {
  for (const auto& [ranks, cores] : {std::pair{2, 2}, {2, 3}, {64, 64}, {2, 128}}) {
    const Party::Patience patience = patience_of(ranks, cores);
    EXPECT_GT(patience.spin.count(), 0) << ranks << " on " << cores;
    EXPECT_GT(patience.yield, patience.spin) << ranks << " on " << cores;
  }
}

TEST(Patience, LetsOthersRunAtOnceWhereRanksShareCores) {
  for (const auto& [ranks, cores] : {std::pair{2, 1}, {3, 2}, {65, 64}, {128, 2}}) {
    const Party::Patience patience = patience_of(ranks, cores);
    EXPECT_EQ(patience.spin.count(), 0) << ranks << " on " << cores;
    EXPECT_GT(patience.yield.count(), 0) << ranks << " on " << cores;
  }
}

// A sleeper looks up once in a while in either case.
TEST(Patience, EndsInSleepThatEnds) {
  for (const int cores : {1, 2}) {
    EXPECT_GT(patience_of(2, cores).sleep.count(), 0);
    EXPECT_LE(patience_of(2, cores).sleep.count(), 1);
  }
}

}  // namespace
}  // namespace troika::shm
