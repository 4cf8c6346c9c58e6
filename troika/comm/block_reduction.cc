#include <troika/comm/block_reduction.h>
#include <troika/comm/fold.h>

#include <ATen/ATen.h>

#include <algorithm>

namespace troika::detail {

std::int64_t BlockReduction::scratch_bytes(const Parts& parts, int size) {
  return kSlots * (size - 1) * std::min(kBlockBytes, parts.largest());
}

BlockReduction::BlockReduction(Link& link, const OperationScope& scope, Arguments arguments,
                               at::Tensor scratch)
    : link_(link),
      scope_(scope),
      arguments_(std::move(arguments)),
      scratch_(std::move(scratch)),
      blocks_((arguments_.parts.largest() + kBlockBytes - 1) / kBlockBytes),
      incoming_{Messages(link, scope.deadline), Messages(link, scope.deadline)},
      outgoing_(link, scope.deadline) {}

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
  const std::int64_t begin = std::min(block * kBlockBytes, arguments_.parts.bytes(part));
  const std::int64_t end = std::min(begin + kBlockBytes, arguments_.parts.bytes(part));
  return whole.narrow(0, arguments_.parts.offset(part) + begin, end - begin);
}

at::Tensor BlockReduction::slot(std::int64_t block, int peer) const {
  const std::int64_t slot_bytes = std::min(kBlockBytes, arguments_.parts.largest());
  const std::int64_t index = (block % kSlots) * (link_.size() - 1) + peer - (peer > link_.rank());
  const std::int64_t bytes = block_of(arguments_.input, link_.rank(), block).numel();
  return scratch_.narrow(0, index * slot_bytes, bytes);
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
               data(arguments_.output) + block * kBlockBytes, own.numel() / size);
}

void BlockReduction::spread(std::int64_t block) {
  const at::Tensor own = block_of(arguments_.input, link_.rank(), block);
  for (const int peer : peers_after(link_.rank(), link_.size())) {
    outgoing_.send(peer, own, scope_.tag + 1);
  }
}

}  // namespace troika::detail
