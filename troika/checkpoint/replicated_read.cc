#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/checkpoint/replicated_read.h>
#include <troika/comm/gather.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <utility>

namespace troika {
namespace {

// What tells a part from others: a hash of the name, the slice, the range, and its bytes.
constexpr std::size_t kIdentityFields = 7;
using Identity = std::array<std::int64_t, kIdentityFields>;

Identity identity_of(const StateTensor& part) {
  const ShardDescriptor& shard = part.shard;
  return {std::bit_cast<std::int64_t>(content_hash(part.name)),
          std::int64_t{shard.slice.dim},
          shard.slice.begin,
          shard.slice.end,
          shard.begin,
          shard.count,
          static_cast<std::int64_t>(part.tensor.nbytes())};
}

at::Tensor fields_of(std::span<const StateTensor> wanted) {
  std::vector<std::int64_t> fields;
  for (const StateTensor& part : wanted) {
    const Identity identity = identity_of(part);
    fields.insert(fields.end(), identity.begin(), identity.end());
  }
  return at::tensor(fields, at::kLong);
}

}  // namespace

ReplicatedRead::ReplicatedRead(Group world, std::span<const StateTensor> wanted, Seconds timeout,
                               PartReaders readers)
    : world_(std::move(world)), timeout_(timeout) {
  if (readers == PartReaders::kAllOfOneHost && world_.by_host().hosts == 1) {
    for (const StateTensor& part : wanted)
      parts_.push_back({{world_.rank()}, world_.rank(), &part});
  } else {
    divide(wanted);
  }
}

void ReplicatedRead::divide(std::span<const StateTensor> wanted) {
  const GatheredElements all =
      gather_elements(world_, fields_of(wanted), {"parts that ranks want", Deadline::in(timeout_)});
  std::map<Identity, Shared> by_identity;
  const auto* in = all.elements.const_data_ptr<std::int64_t>();
  for (std::size_t rank = 0; rank < all.counts.size(); ++rank) {
    const auto parts = static_cast<std::size_t>(all.counts[rank]) / kIdentityFields;
    for (std::size_t i = 0; i < parts; ++i, in += kIdentityFields) {
      Identity identity{};
      std::copy_n(in, kIdentityFields, identity.begin());
      Shared& shared = by_identity[identity];
      check(shared.ranks.empty() || shared.ranks.back() != static_cast<int>(rank),
            "a rank wants the same part twice");
      shared.ranks.push_back(static_cast<int>(rank));
    }
  }
  std::vector<std::int64_t> bytes(all.counts.size(), 0);
  for (auto& [identity, shared] : by_identity) {
    // The map is in the same order on all ranks, so that each of them finds the same readers
    // without asking.
    shared.reader = *std::ranges::min_element(
        shared.ranks, {}, [&](int rank) { return bytes[static_cast<std::size_t>(rank)]; });
    bytes[static_cast<std::size_t>(shared.reader)] += identity.back();
  }
  for (const StateTensor& part : wanted) by_identity.at(identity_of(part)).own = &part;
  for (auto& [identity, shared] : by_identity) parts_.push_back(std::move(shared));
}

void ReplicatedRead::read(const std::function<void(const StateTensor&)>& read_one) const {
  for (const Shared& part : parts_) {
    if (part.reader == world_.rank()) read_one(*part.own);
  }
}

void ReplicatedRead::share() const {
  for (const Shared& part : parts_) {
    // In the order of the map, on all ranks: two ranks that share several parts exchange them in
    // the same order.
    if (part.own != nullptr && part.ranks.size() > 1) share_one(part);
  }
}

void ReplicatedRead::share_one(const Shared& part) const {
  const at::Tensor& tensor = part.own->tensor;
  const std::int64_t most =
      std::max<std::int64_t>(1, kChunkBytes / static_cast<std::int64_t>(tensor.element_size()));
  const bool reads = part.reader == world_.rank();
  for (std::int64_t begin = 0; begin < tensor.numel(); begin += most) {
    const at::Tensor place = tensor.narrow(0, begin, std::min(most, tensor.numel() - begin));
    at::Tensor piece = place;
    if (!place.is_cpu()) piece = reads ? place.cpu() : at::empty_like(place, at::kCPU);
    std::vector<Transfer> transfers;
    for (const int rank : part.ranks) {
      if (reads && rank != part.reader) {
        transfers.push_back({Transfer::Direction::kSend, rank, piece});
      }
    }
    if (!reads) transfers.push_back({Transfer::Direction::kReceive, part.reader, piece});
    world_.exchange(transfers, {"values that one rank has read", Deadline::in(timeout_)}).wait();
    if (!reads && !place.is_cpu()) place.copy_(piece);
  }
}

std::int64_t ReplicatedRead::bytes_read() const {
  std::int64_t bytes = 0;
  for (const Shared& part : parts_) {
    if (part.reader == world_.rank()) bytes += static_cast<std::int64_t>(part.own->tensor.nbytes());
  }
  return bytes;
}

}  // namespace troika
