// Who exchanges with whom where replicas never all meet (D-PSGD, Lian et al. 2017; exponential
// graphs, Assran et al. 2019).
#pragma once

#include <cstdint>
#include <vector>

namespace troika {

enum class Topology { kRing, kExponential, kComplete };

// The islands that one sends to, and hears from, in a step, by their numbers; never itself.
struct GossipPeers {
  std::vector<int> to, from;
};
// Returns those of `island` among `islands`, after `step` steps:
//
//   ring         both neighbours
//   exponential  the one 2^(step mod ceil(log2 islands)) further on
//   complete     all others
//
// All that exchange have the same weight, so that the means leave the mean of all unchanged.
[[nodiscard]] GossipPeers gossip_peers(Topology topology, int island, int islands,
                                       std::int64_t step);

}  // namespace troika
