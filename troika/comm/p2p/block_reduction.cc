#include <troika/comm/p2p/block_reduction.h>
#include <troika/comm/reduce.h>

#include <ATen/ATen.h>

#include <algorithm>

namespace troika::detail {

std::int64_t BlockReduction::default_block_bytes(int size) {
  constexpr std::int64_t kSmallest = std::int64_t{256} << 10;
  constexpr std::int64_t kLargest = std::int64_t{4} << 20;
  constexpr std::int64_t kForAllPeers = std::int64_t{16} << 20;
  return std::clamp(kForAllPeers / (size - 1) / 4096 * 4096, kSmallest, kLargest);
}

BlockReduction::BlockReduction(Transport& transport, const OperationScope& scope,
                               Arguments arguments,
                               const std::function<at::Tensor(std::int64_t)>& scratch)
    : transport_(transport),
      scope_(scope),
      arguments_(std::move(arguments)),
      blocks_((arguments_.parts.largest() + arguments_.block_bytes - 1) / arguments_.block_bytes),
      scratch_(scratch(kSlots * (transport.size() - 1) * slot_bytes())),
      incoming_{PendingTransfers(transport, scope.deadline, scope.record),
                PendingTransfers(transport, scope.deadline, scope.record)},
      outgoing_(transport, scope.deadline, scope.record) {}

std::int64_t BlockReduction::slot_bytes() const {
  return std::min(arguments_.block_bytes, arguments_.parts.largest());
}

void BlockReduction::run() {
  if (blocks_ > 0) post(0);
  for (std::int64_t block = 0; block < blocks_; ++block) {
    if (block + 1 < blocks_) post(block + 1);
    reduce(block);
    if (arguments_.result_owner == ResultOwner::kAllMembers) send_to_peers(block);
  }
  outgoing_.wait();
}

// The bytes of `block` in a part, which may be fewer than in the largest part, or none.
at::Tensor BlockReduction::block_of(const at::Tensor& whole, int part, std::int64_t block) const {
  const std::int64_t begin = std::min(block * arguments_.block_bytes, arguments_.parts.bytes(part));
  const std::int64_t end = std::min(begin + arguments_.block_bytes, arguments_.parts.bytes(part));
  return whole.narrow(0, arguments_.parts.offset(part) + begin, end - begin);
}

at::Tensor BlockReduction::slot(std::int64_t block, int peer) const {
  const std::int64_t index =
      (block % kSlots) * (transport_.size() - 1) + peer - (peer > transport_.rank());
  const std::int64_t bytes = block_of(arguments_.input, transport_.rank(), block).numel();
  return scratch_.narrow(0, index * slot_bytes(), bytes);
}

void BlockReduction::post(std::int64_t block) {
  PendingTransfers& incoming = incoming_[static_cast<std::size_t>(block % kSlots)];
  for (const int peer : peers_before(transport_.rank(), transport_.size())) {
    incoming.receive(peer, slot(block, peer), scope_.tag);
    // In place. That a peer's reduced block arrives means that it has received ours, so no
    // message under way reads the memory it is written to.
    if (arguments_.result_owner == ResultOwner::kAllMembers) {
      outgoing_.receive(peer, block_of(arguments_.input, peer, block), scope_.tag + 1);
    }
  }
  for (const int peer : peers_after(transport_.rank(), transport_.size())) {
    outgoing_.send(peer, block_of(arguments_.input, peer, block), scope_.tag);
  }
}

void BlockReduction::reduce(std::int64_t block) {
  incoming_[static_cast<std::size_t>(block % kSlots)].wait();
  const at::Tensor own = block_of(arguments_.input, transport_.rank(), block);
  if (own.numel() == 0) return;
  std::vector<const std::byte*> inputs;
  for (int member = 0; member < transport_.size(); ++member) {
    inputs.push_back(data(member == transport_.rank() ? own : slot(block, member)));
  }
  const auto size = static_cast<std::int64_t>(c10::elementSize(arguments_.dtype));
  troika::reduce_in_rank_order(arguments_.dtype, arguments_.op, inputs,
                               data(arguments_.output) + block * arguments_.block_bytes,
                               own.numel() / size);
}

void BlockReduction::send_to_peers(std::int64_t block) {
  const at::Tensor own = block_of(arguments_.input, transport_.rank(), block);
  for (const int peer : peers_after(transport_.rank(), transport_.size())) {
    outgoing_.send(peer, own, scope_.tag + 1);
  }
}

}  // namespace troika::detail
