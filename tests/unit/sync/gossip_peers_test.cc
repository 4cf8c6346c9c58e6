#include <gtest/gtest.h>
#include <troika/sync/gossip_sync.h>

#include <algorithm>
#include <array>
#include <vector>

namespace troika {
namespace {

constexpr std::array kTopologies = {Topology::kRing, Topology::kExponential, Topology::kComplete};

// Who sends is heard, and equal weights then keep the mean of all.
TEST(GossipPeers, HearWhatIsSentToThem) {
  for (const Topology topology : kTopologies) {
    for (int islands = 1; islands <= 9; ++islands) {
      for (std::int64_t step = 0; step < 5; ++step) {
        for (int island = 0; island < islands; ++island) {
          const GossipPeers own = gossip_peers(topology, island, islands, step);
          EXPECT_EQ(own.to.size(), own.from.size());
          for (const int peer : own.to) {
            EXPECT_NE(peer, island);
            const auto heard = gossip_peers(topology, peer, islands, step).from;
            EXPECT_EQ(std::ranges::count(heard, island), 1)
                << name_of(topology) << " " << islands << " islands, step " << step;
          }
        }
      }
    }
  }
}

// After as many steps as there are distances everyone has heard of everyone: for powers of two the
// mean of all is reached exactly (Assran et al. 2019).
TEST(GossipPeers, OfAnExponentialGraphReachTheMean) {
  for (const int islands : {2, 4, 8}) {
    std::vector<double> values(static_cast<std::size_t>(islands));
    for (int i = 0; i < islands; ++i) values[static_cast<std::size_t>(i)] = i * i;
    double mean = 0;
    for (const double value : values) mean += value / islands;
    for (int step = 0; 1 << step < islands; ++step) {
      std::vector<double> next = values;
      for (int i = 0; i < islands; ++i) {
        const int from = gossip_peers(Topology::kExponential, i, islands, step).from.front();
        next[static_cast<std::size_t>(i)] =
            (values[static_cast<std::size_t>(i)] + values[static_cast<std::size_t>(from)]) / 2;
      }
      values = next;
    }
    for (const double value : values) EXPECT_NEAR(value, mean, 1e-12);
  }
}

TEST(GossipPeers, OfARingAreItsNeighbours) {
  EXPECT_EQ(gossip_peers(Topology::kRing, 0, 4, 7).to, (std::vector{1, 3}));
  EXPECT_EQ(gossip_peers(Topology::kRing, 0, 2, 7).to, (std::vector{1}));
  EXPECT_TRUE(gossip_peers(Topology::kRing, 0, 1, 7).to.empty());
}

}  // namespace
}  // namespace troika
