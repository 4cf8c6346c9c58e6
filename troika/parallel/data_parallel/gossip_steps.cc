#include <torch/torch.h>
#include <troika/parallel/data_parallel/gossip_steps.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace troika {

struct GossipSteps::Impl {
  // What is on its way, of one block.
  struct Exchange {
    at::Tensor sent;                   // as it was
    std::vector<at::Tensor> received;  // one from each peer
    Work work = {};
  };

  Impl(ReplicaTensors the_tensors, Session the_session, GossipStepsOptions the_options)
      : tensors(std::move(the_tensors)),
        session(std::move(the_session)),
        options(the_options),
        blocks(detail::agree_on(tensors, session, "GossipSteps")) {}

  void begin() {
    const GossipPeers peers = gossip_peers(options.topology, session.rank(), session.size(), steps);
    for (const detail::ReplicaBlock& block : blocks) {
      Exchange exchange;
      exchange.sent = block.read();
      std::vector<Transfer> transfers;
      for (const int peer : peers.from) {
        exchange.received.push_back(at::empty_like(exchange.sent));
        transfers.push_back({Transfer::Direction::kReceive, peer, exchange.received.back()});
      }
      for (const int peer : peers.to) {
        transfers.push_back({Transfer::Direction::kSend, peer, exchange.sent});
      }
      exchange.work = session.world().exchange(transfers, session.call("gossip"));
      under_way.push_back(std::move(exchange));
    }
  }

  void finish() {
    const std::vector<Exchange> all = std::exchange(under_way, {});
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Exchange& exchange = all[i];
      exchange.work.wait();
      at::Tensor change = exchange.sent.clone();
      for (const at::Tensor& received : exchange.received) change.add_(received);
      change.div_(static_cast<double>(exchange.received.size() + 1)).sub_(exchange.sent);
      blocks[i].write(blocks[i].read().add_(change));
    }
  }

  void step() {
    const torch::NoGradGuard no_grad;
    if (session.size() == 1) return;
    finish();
    begin();
    ++steps;
    if (!options.overlap) finish();
  }

  void average() {
    const torch::NoGradGuard no_grad;
    finish();
    for (const detail::ReplicaBlock& block : blocks) block.write(mean_of(block));
    detail::average_buffers(tensors, session);
  }

  [[nodiscard]] at::Tensor mean_of(const detail::ReplicaBlock& block) const {
    at::Tensor mean = block.read();
    session.world().all_reduce(mean, ReduceOp::kAverage, session.call("mean of gossip")).wait();
    return mean;
  }

  [[nodiscard]] double distance() const {
    const torch::NoGradGuard no_grad;
    double squares = 0;
    for (const detail::ReplicaBlock& block : blocks) {
      squares += block.read().sub_(mean_of(block)).to(at::kDouble).square().sum().item<double>();
    }
    return std::sqrt(session.average(squares, "distance of gossip"));
  }

  ReplicaTensors tensors;
  Session session;
  GossipStepsOptions options;
  std::vector<detail::ReplicaBlock> blocks;
  std::vector<Exchange> under_way;
  std::int64_t steps = 0;
};

GossipSteps::GossipSteps(ReplicaTensors tensors, Session session, GossipStepsOptions options)
    : impl_(std::make_unique<Impl>(std::move(tensors), std::move(session), options)) {}
GossipSteps::GossipSteps(GossipSteps&&) noexcept = default;
GossipSteps& GossipSteps::operator=(GossipSteps&&) noexcept = default;
GossipSteps::~GossipSteps() = default;

void GossipSteps::step() {
  impl_->step();
}

void GossipSteps::average() {
  impl_->average();
}

double GossipSteps::distance() {
  return impl_->distance();
}

}  // namespace troika
