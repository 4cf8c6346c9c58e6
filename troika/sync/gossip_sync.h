// Replicas that never all meet: after each step an island exchanges its parameters with one or two
// others, and takes a mean (D-PSGD, Lian et al. 2017; exponential graphs, Assran et al. 2019).
#pragma once

#include <troika/sync/gossip_peers.h>
#include <troika/sync/loose_sync.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace troika {

template <>
std::span<const std::string_view> names_of<Topology>();

struct GossipOptions {
  Topology topology = Topology::kExponential;
  bool overlap = true;
  std::int64_t island = 0;

  bool operator==(const GossipOptions&) const = default;
};

// Mixes the parameters of islands. With x_i those of island i after its own update, and W the
// weights of a step's peers,
//
//   x_i = sum_j W_ij x_j                          without overlap
//   x_i(t+1) += sum_j W_ij x_j(t) - x_i(t)        with it: what is sent after step t is on its way
//                                                 during step t+1
//
class GossipSync final : public LooseSync {
 public:
  GossipSync(Arena& arena, GossipOptions options, SyncGroups groups);

  void refresh() override;
  void save(StateDict& state) const override;
  void load(const StateDict& state) override;

 private:
  // The transfers between islands that are under way, for this rank's part.
  struct Exchange {
    at::Tensor sent;                   // as it was
    std::vector<at::Tensor> received;  // one from each peer
    Work work = {};
  };

  bool exchange() override;
  [[nodiscard]] Exchange begin_exchange(std::int64_t step) const;
  void finish_exchange();

  GossipOptions options_;
  std::optional<Exchange> exchange_;
  bool resumes_ = false;  // an exchange that was on its way is to be begun again
};

}  // namespace troika
