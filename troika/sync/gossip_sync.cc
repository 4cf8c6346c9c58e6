#include <ATen/ATen.h>
#include <troika/sync/gossip_sync.h>

#include <array>
#include <utility>

namespace troika {
namespace {

constexpr const char* kOnItsWay = "sync.gossip";  // 1 where something is on its way

}  // namespace

template <>
std::span<const std::string_view> names_of<Topology>() {
  static constexpr std::array<std::string_view, 3> kNames = {"ring", "exponential", "complete"};
  return kNames;
}

GossipSync::GossipSync(Arena& arena, GossipOptions options, SyncGroups groups)
    : LooseSync("gossip", arena, std::move(groups)), options_(options) {}

GossipSync::Exchange GossipSync::begin_exchange(std::int64_t step) const {
  const Group& islands = groups().islands;
  const GossipPeers peers = gossip_peers(options_.topology, islands.rank(), islands.size(), step);
  const IndexRange own = masters().own_part({0, masters().size()});
  Exchange exchange;
  exchange.sent = masters().empty(own.count);
  masters().read(own, exchange.sent);
  std::vector<Transfer> transfers;
  for (const int peer : peers.from) {
    exchange.received.push_back(masters().empty(own.count));
    transfers.push_back({Transfer::Direction::kReceive, peer, exchange.received.back()});
  }
  for (const int peer : peers.to) {
    transfers.push_back({Transfer::Direction::kSend, peer, exchange.sent});
  }
  exchange.work = islands.exchange(transfers, call("islands"));
  return exchange;
}

void GossipSync::finish_exchange() {
  const Exchange exchange = *std::exchange(exchange_, std::nullopt);
  exchange.work.wait();
  const IndexRange all{0, masters().size()}, own = masters().own_part(all);
  const at::Tensor change = masters().empty(all.count);
  at::Tensor mine = change.narrow(0, own.first, own.count);
  mine.copy_(exchange.sent);
  for (const at::Tensor& received : exchange.received) mine.add_(received);
  mine.div_(static_cast<double>(exchange.received.size() + 1)).sub_(exchange.sent);
  masters().gather(all, change, call("islands"));
  const at::Tensor values = masters().empty(all.count);
  masters().read(all, values);
  // The change is added, since a step may have been taken while the values were on their way.
  masters().write(all, values.add_(change));
}

bool GossipSync::exchange() {
  if (groups().islands.size() == 1) return false;
  const bool has_met = exchange_.has_value() || !options_.overlap;
  if (exchange_) finish_exchange();
  exchange_ = begin_exchange(step());
  if (!options_.overlap) finish_exchange();
  return has_met;
}

// What was on its way when a state was saved is sent again: no step had been taken since.
void GossipSync::refresh() {
  if (std::exchange(resumes_, false)) exchange_ = begin_exchange(step() - 1);
  LooseSync::refresh();
}

void GossipSync::save(StateDict& state) const {
  LooseSync::save(state);
  state.set(kOnItsWay, std::int64_t{exchange_ ? 1 : 0});
}

void GossipSync::load(const StateDict& state) {
  LooseSync::load(state);
  exchange_.reset();
  resumes_ = is_of_same_islands(state) && state.integer(kOnItsWay) == 1;
}

namespace {

class GossipKind final : public Declared<SyncKind, GossipOptions> {
 public:
  using K = KeysOf<GossipOptions>;
  GossipKind()
      : Declared(
            "gossip",
            {K::choice<&GossipOptions::topology>("topology",
                                                 "the islands that an island exchanges with"),
             K::boolean<&GossipOptions::overlap>(
                 "overlap", "an exchange is on its way during the next step; false: waited for"),
             K::integer<&GossipOptions::island>("island", ranges::kCountOrOff,
                                                "ranks of an island; 0: those of a host")}) {}

  [[nodiscard]] std::int64_t island(const Options& options,
                                    std::int64_t host_ranks) const override {
    const std::int64_t asked = options.as<GossipOptions>().island;
    return asked > 0 ? asked : host_ranks;
  }
  // What is sent, and what comes from two peers at most, or from all.
  [[nodiscard]] std::int64_t copies(const Options& options) const override {
    return options.as<GossipOptions>().topology == Topology::kRing ? 3 : 2;
  }
  [[nodiscard]] Compresses compresses() const override { return Compresses::kNothing; }
  [[nodiscard]] std::unique_ptr<ReplicaSync> make(const Options& options, Arena& arena,
                                                  const SyncGroups& groups) const override {
    return std::make_unique<GossipSync>(arena, options.as<GossipOptions>(), groups);
  }
};

}  // namespace

const SyncKind& gossip_kind() {
  static const GossipKind kKind;
  return kKind;
}

}  // namespace troika
