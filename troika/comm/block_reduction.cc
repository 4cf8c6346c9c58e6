#include <troika/comm/block_reduction.h>
#include <troika/comm/fold.h>

#include <ATen/ATen.h>

#include <algorithm>

namespace troika::detail {

std::int64_t BlockReduction::default_block_bytes(int size) {
  constexpr std::int64_t kSmallest = std::int64_t{256} << 10;
  constexpr std::int64_t kLargest = std::int64_t{4} << 20;
  constexpr std::int64_t kForAllPeers = std::int64_t{16} << 20;
  return std::clamp(kForAllPeers / (size - 1) / 4096 * 4096, kSmallest, kLargest);
}

BlockReduction::BlockReduction(Link& link, const OperationScope& scope, Arguments arguments,
                               const std::function<at::Tensor(std::int64_t)>& scratch)
    : link_(link),
      scope_(scope),
      arguments_(std::move(arguments)),
      blocks_((arguments_.parts.largest() + arguments_.block_bytes - 1) / arguments_.block_bytes),
      scratch_(scratch(kSlots * (link.size() - 1) * slot_bytes())),
      incoming_{Messages(link, scope.deadline, scope.record),
                Messages(link, scope.deadline, scope.record)},
      outgoing_(link, scope.deadline, scope.record) {}

std::int64_t BlockReduction::slot_bytes() const {
  return std::min(arguments_.block_bytes, arguments_.parts.largest());
}

void BlockReduction::run() {
  if (blocks_ > 0) post(0);
  for (std::int64_t block = 0; block < blocks_; ++block) {
    if (block + 1 < blocks_) post(block + 1);
    fold(block);
    if (arguments_.folded == Folded::kSpread) spread(block);
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
  const std::int64_t index = (block % kSlots) * (link_.size() - 1) + peer - (peer > link_.rank());
  const std::int64_t bytes = block_of(arguments_.input, link_.rank(), block).numel();
  return scratch_.narrow(0, index * slot_bytes(), bytes);
}

void BlockReduction::post(std::int64_t block) {
  Messages& incoming = incoming_[static_cast<std::size_t>(block % kSlots)];
  for (const int peer : peers_before(link_.rank(), link_.size())) {
    incoming.receive(peer, slot(block, peer), scope_.tag);
    // In place. That a peer's folded block arrives means that it has received ours to fold, so no
    // message under way reads the memory it is written to.
    if (arguments_.folded == Folded::kSpread) {
      outgoing_.receive(peer, block_of(arguments_.input, peer, block), scope_.tag + 1);
    }
  }
  for (const int peer : peers_after(link_.rank(), link_.size())) {
    outgoing_.send(peer, block_of(arguments_.input, peer, block), scope_.tag);
  }
}

void BlockReduction::fold(std::int64_t block) {
  incoming_[static_cast<std::size_t>(block % kSlots)].wait();
  const at::Tensor own = block_of(arguments_.input, link_.rank(), block);
  if (own.numel() == 0) return;
  std::vector<const std::byte*> inputs;
  for (int member = 0; member < link_.size(); ++member) {
    inputs.push_back(data(member == link_.rank() ? own : slot(block, member)));
  }
  const auto size = static_cast<std::int64_t>(c10::elementSize(arguments_.dtype));
  troika::fold(arguments_.dtype, arguments_.op, inputs,
               data(arguments_.output) + block * arguments_.block_bytes, own.numel() / size);
}

void BlockReduction::spread(std::int64_t block) {
  const at::Tensor own = block_of(arguments_.input, link_.rank(), block);
  for (const int peer : peers_after(link_.rank(), link_.size())) {
    outgoing_.send(peer, own, scope_.tag + 1);
  }
}

}  // namespace troika::detail
