#include <troika/sync/gossip_peers.h>

namespace troika {

GossipPeers gossip_peers(Topology topology, int island, int islands, std::int64_t step) {
  GossipPeers peers;
  if (islands == 1) return peers;
  const auto at = [&](int distance) { return ((island + distance) % islands + islands) % islands; };
  if (topology == Topology::kRing) {
    peers.to = {at(1), at(-1)};
    if (islands == 2) peers.to.pop_back();
    peers.from = peers.to;
  } else if (topology == Topology::kExponential) {
    int rounds = 1;
    while (1 << rounds < islands) ++rounds;
    const int distance = 1 << (step % rounds);
    peers.to = {at(distance)};
    peers.from = {at(-distance)};
  } else {
    for (int i = 1; i < islands; ++i) peers.to.push_back(at(i));
    peers.from = peers.to;
  }
  return peers;
}

}  // namespace troika
