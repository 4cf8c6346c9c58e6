#include <troika/comm/p2p/pending_transfers.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

namespace troika::detail {

at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

std::byte* data(const at::Tensor& bytes) {
  return static_cast<std::byte*>(bytes.mutable_data_ptr());
}

void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  if (to.numel() == 0 || data(to) == data(from)) return;
  std::memcpy(data(to), data(from), static_cast<std::size_t>(from.numel()));
}

Parts::Parts(std::span<const std::int64_t> counts, std::int64_t element_size) {
  std::int64_t offset = 0;
  for (const std::int64_t count : counts) {
    bytes_.push_back(count * element_size);
    offsets_.push_back(offset);
    offset += count * element_size;
  }
}

Parts Parts::even(std::int64_t elements, int parts, std::int64_t element_size) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(parts), elements / parts);
  for (std::int64_t i = 0; i < elements % parts; ++i) ++counts[static_cast<std::size_t>(i)];
  return Parts(counts, element_size);
}

std::int64_t Parts::largest() const {
  return *std::max_element(bytes_.begin(), bytes_.end());
}

at::Tensor Parts::of(const at::Tensor& whole, int part) const {
  return whole.narrow(0, offset(part), bytes(part));
}

void PendingTransfers::send(int peer, const at::Tensor& bytes, std::uint32_t tag) {
  if (bytes.numel() == 0) return;
  messages_.push_back(transport_.send(peer, bytes, tag));
  record_.sent(bytes.nbytes());
}

void PendingTransfers::receive(int peer, const at::Tensor& bytes, std::uint32_t tag) {
  if (bytes.numel() == 0) return;
  messages_.push_back(transport_.receive(peer, bytes, tag));
  receives_ = true;
}

void PendingTransfers::wait() {
  for (const auto& message : messages_) message->wait(deadline_);
  messages_.clear();
  if (receives_) record_.step();
  receives_ = false;
}

std::vector<int> peers_after(int rank, int size) {
  std::vector<int> peers;
  for (int distance = 1; distance < size; ++distance) peers.push_back((rank + distance) % size);
  return peers;
}

std::vector<int> peers_before(int rank, int size) {
  std::vector<int> peers = peers_after(rank, size);
  std::reverse(peers.begin(), peers.end());
  return peers;
}

}  // namespace troika::detail
