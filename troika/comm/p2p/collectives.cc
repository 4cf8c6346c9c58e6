#include <troika/base/units.h>
#include <troika/comm/p2p/block_reduction.h>
#include <troika/comm/p2p/collectives.h>
#include <troika/comm/p2p/pending_transfers.h>
#include <troika/comm/reduce.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

namespace troika {

using detail::as_bytes;
using detail::Parts;
using detail::peers_after;
using detail::peers_before;
using detail::PendingTransfers;

namespace {

// A tensor of which all peers together send less than this is reduced in one step: there, a second
// step takes longer than the additional bytes.
constexpr std::int64_t kAtOnceBytes = std::int64_t{256} << 10;

}  // namespace

Collectives::Collectives(Transport& transport)
    : Collectives(transport,
                  {kAtOnceBytes, detail::BlockReduction::default_block_bytes(transport.size())}) {}

Collectives::Collectives(Transport& transport, Tuning tuning)
    : transport_(transport), rank_(transport.rank()), size_(transport.size()), tuning_(tuning) {}

at::Tensor Collectives::scratch(std::int64_t bytes) {
  if (scratch_.defined() && scratch_.numel() >= bytes) return scratch_;
  // Memory of the engine, as windows are: not among the job's tensors, which are counted.
  const std::shared_ptr<std::byte[]> memory(new std::byte[static_cast<std::size_t>(bytes)]);
  scratch_ = at::from_blob(
      memory.get(), {bytes}, [memory](void*) {}, at::kByte);
  return scratch_;
}

void Collectives::all_reduce(const at::Tensor& tensor, ReduceOp op, const OperationScope& scope) {
  if (static_cast<std::int64_t>(tensor.nbytes()) * (size_ - 1) <= tuning_.at_once_bytes) {
    return all_reduce_at_once(tensor, op, scope);
  }
  const Parts parts = Parts::even(tensor.numel(), size_, tensor.element_size());
  const at::Tensor bytes = as_bytes(tensor);
  detail::BlockReduction reduction(transport_, scope,
                                   {.input = bytes,
                                    .output = parts.of(bytes, rank_),
                                    .parts = parts,
                                    .dtype = tensor.scalar_type(),
                                    .op = op,
                                    .result_owner = detail::ResultOwner::kAllMembers,
                                    .block_bytes = tuning_.block_bytes},
                                   [this](std::int64_t bytes) { return scratch(bytes); });
  reduction.run();
}

void Collectives::all_reduce_at_once(const at::Tensor& tensor, ReduceOp op,
                                     const OperationScope& scope) {
  const at::Tensor own = as_bytes(tensor);
  const std::int64_t bytes = own.numel();
  const at::Tensor others = scratch(bytes * (size_ - 1));
  PendingTransfers pending(transport_, scope.deadline, scope.record);
  std::vector<const std::byte*> inputs(static_cast<std::size_t>(size_), detail::data(own));
  for (const int peer : peers_before(rank_, size_)) {
    const at::Tensor from = others.narrow(0, (peer - (peer > rank_)) * bytes, bytes);
    inputs[static_cast<std::size_t>(peer)] = detail::data(from);
    pending.receive(peer, from, scope.tag);
  }
  for (const int peer : peers_after(rank_, size_)) pending.send(peer, own, scope.tag);
  pending.wait();
  reduce_in_rank_order(tensor.scalar_type(), op, inputs, detail::data(own), tensor.numel());
}

void Collectives::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                 std::span<const std::int64_t> counts, ReduceOp op,
                                 const OperationScope& scope) {
  const Parts parts(counts, input.element_size());
  detail::BlockReduction reduction(transport_, scope,
                                   {.input = as_bytes(input),
                                    .output = as_bytes(output),
                                    .parts = parts,
                                    .dtype = input.scalar_type(),
                                    .op = op,
                                    .result_owner = detail::ResultOwner::kThisMember,
                                    .block_bytes = tuning_.block_bytes},
                                   [this](std::int64_t bytes) { return scratch(bytes); });
  reduction.run();
}

void Collectives::all_gather(const at::Tensor& output, const at::Tensor& input,
                             std::span<const std::int64_t> counts, const OperationScope& scope) {
  const Parts parts(counts, input.element_size());
  const at::Tensor all = as_bytes(output);
  const at::Tensor own = as_bytes(input);
  PendingTransfers pending(transport_, scope.deadline, scope.record);
  for (const int peer : peers_before(rank_, size_)) {
    pending.receive(peer, parts.of(all, peer), scope.tag);
  }
  for (const int peer : peers_after(rank_, size_)) pending.send(peer, own, scope.tag);
  detail::copy_bytes(parts.of(all, rank_), own);
  pending.wait();
}

std::string SizesDiffer::text() const {
  const bool sends = which_ == Ours::kSent;
  return (sends ? "expects " : "sends ") + format_bytes(static_cast<std::uint64_t>(theirs_)) +
         " where " + format_bytes(static_cast<std::uint64_t>(ours_)) +
         (sends ? " are sent" : " are expected");
}

void Collectives::compare_sizes(const Parts& to, const Parts& from, const OperationScope& scope) {
  const at::Tensor ours = at::empty({size_, 2}, at::kLong), theirs = at::empty_like(ours);
  auto* sizes = ours.mutable_data_ptr<std::int64_t>();
  for (int peer = 0; peer < size_; ++peer) {
    sizes[2 * peer] = to.bytes(peer);
    sizes[2 * peer + 1] = from.bytes(peer);
  }
  const auto have_nothing = [&](int peer) { return to.bytes(peer) == 0 && from.bytes(peer) == 0; };
  PendingTransfers pending(transport_, scope.deadline, scope.record);
  for (const int peer : peers_before(rank_, size_)) {
    if (!have_nothing(peer)) pending.receive(peer, as_bytes(theirs[peer]), scope.tag + 1);
  }
  for (const int peer : peers_after(rank_, size_)) {
    if (!have_nothing(peer)) pending.send(peer, as_bytes(ours[peer]), scope.tag + 1);
  }
  pending.wait();
  using enum SizesDiffer::Ours;
  const auto* found = theirs.const_data_ptr<std::int64_t>();
  for (const int peer : peers_after(rank_, size_)) {
    if (have_nothing(peer)) continue;
    const std::int64_t sent = found[2 * peer], expected = found[2 * peer + 1];
    if (sent != from.bytes(peer)) throw SizesDiffer(peer, kExpected, from.bytes(peer), sent);
    if (expected != to.bytes(peer)) throw SizesDiffer(peer, kSent, to.bytes(peer), expected);
  }
}

void Collectives::all_to_all(const at::Tensor& output, std::span<const std::int64_t> output_counts,
                             const at::Tensor& input, std::span<const std::int64_t> input_counts,
                             const OperationScope& scope) {
  const Parts to(input_counts, input.element_size());
  const Parts from(output_counts, output.element_size());
  compare_sizes(to, from, scope);  // a transport may take one size for another
  const at::Tensor sent = as_bytes(input);
  const at::Tensor received = as_bytes(output);
  PendingTransfers pending(transport_, scope.deadline, scope.record);
  for (const int peer : peers_before(rank_, size_)) {
    pending.receive(peer, from.of(received, peer), scope.tag);
  }
  for (const int peer : peers_after(rank_, size_)) {
    pending.send(peer, to.of(sent, peer), scope.tag);
  }
  detail::copy_bytes(from.of(received, rank_), to.of(sent, rank_));
  pending.wait();
}

void Collectives::broadcast(const at::Tensor& tensor, int root, const OperationScope& scope) {
  constexpr std::int64_t kSegmentBytes = std::int64_t{1} << 20;
  const at::Tensor bytes = as_bytes(tensor);
  // In a binomial tree, counted from the root: the parent is the position without its lowest bit,
  // the children are the positions with one bit below that set.
  const int position = (rank_ - root + size_) % size_;
  int lowest_bit = 1;
  while (lowest_bit < size_ && (position & lowest_bit) == 0) lowest_bit *= 2;
  const auto member_at = [&](int place) { return (place + root) % size_; };

  PendingTransfers outgoing(transport_, scope.deadline, scope.record);
  for (std::int64_t start = 0; start < bytes.numel(); start += kSegmentBytes) {
    const at::Tensor segment =
        bytes.narrow(0, start, std::min(kSegmentBytes, bytes.numel() - start));
    if (position != 0) {
      PendingTransfers incoming(transport_, scope.deadline, scope.record);
      incoming.receive(member_at(position - lowest_bit), segment, scope.tag);
      incoming.wait();
    }
    for (int bit = lowest_bit / 2; bit > 0; bit /= 2) {
      if (position + bit < size_) outgoing.send(member_at(position + bit), segment, scope.tag);
    }
  }
  outgoing.wait();
}

void Collectives::gather(const at::Tensor& output, const at::Tensor& input, int root,
                         const OperationScope& scope) {
  PendingTransfers pending(transport_, scope.deadline, scope.record);
  const at::Tensor own = as_bytes(input);
  if (rank_ == root) {
    const Parts parts = Parts::even(input.numel() * size_, size_, input.element_size());
    const at::Tensor all = as_bytes(output);
    for (const int peer : peers_after(rank_, size_)) {
      pending.receive(peer, parts.of(all, peer), scope.tag);
    }
    detail::copy_bytes(parts.of(all, rank_), own);
  } else {
    pending.send(root, own, scope.tag);
  }
  pending.wait();
}

void Collectives::scatter(const at::Tensor& output, const at::Tensor& input, int root,
                          const OperationScope& scope) {
  PendingTransfers pending(transport_, scope.deadline, scope.record);
  const at::Tensor own = as_bytes(output);
  if (rank_ == root) {
    const Parts parts = Parts::even(output.numel() * size_, size_, output.element_size());
    const at::Tensor all = as_bytes(input);
    for (const int peer : peers_after(rank_, size_)) {
      pending.send(peer, parts.of(all, peer), scope.tag);
    }
    detail::copy_bytes(own, parts.of(all, rank_));
  } else {
    pending.receive(root, own, scope.tag);
  }
  pending.wait();
}

void Collectives::barrier(const OperationScope& scope) {
  const at::Tensor byte = scratch(2);
  for (int distance = 1; distance < size_; distance *= 2) {
    PendingTransfers pending(transport_, scope.deadline, scope.record);
    pending.receive((rank_ - distance + size_) % size_, byte.narrow(0, 0, 1), scope.tag);
    pending.send((rank_ + distance) % size_, byte.narrow(0, 1, 1), scope.tag);
    pending.wait();
  }
}

}  // namespace troika
