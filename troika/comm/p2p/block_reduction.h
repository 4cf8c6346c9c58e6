// Reduce-scatter in blocks: each member receives its part from all others, block by block, and
// reduces one block while the next one travels. The memory it needs does not grow with the tensor.
#pragma once

#include <troika/comm/p2p/collectives.h>
#include <troika/comm/p2p/pending_transfers.h>

#include <array>
#include <functional>

namespace troika::detail {

// The members that get the reduced blocks: this one alone, or (all_reduce) all, in place.
enum class ResultOwner { kThisMember, kAllMembers };

class BlockReduction {
 public:
  struct Arguments {
    at::Tensor input;   // bytes, all parts
    at::Tensor output;  // bytes of this member's part; may lie in `input`
    Parts parts;
    at::ScalarType dtype;
    ReduceOp op;
    ResultOwner result_owner;
    std::int64_t block_bytes;  // a multiple of 8; the same for all members
  };

  // Returns a good block size for a group of `size`. It is large enough that the handshake of a
  // message does not count. It is small enough that the scratch memory for up to 64 peers stays at
  // 32 MiB.
  [[nodiscard]] static std::int64_t default_block_bytes(int size);

  // `scratch` is called with the bytes of memory that run() needs.
  BlockReduction(Transport& transport, const OperationScope& scope, Arguments arguments,
                 const std::function<at::Tensor(std::int64_t)>& scratch);
  void run();

 private:
  // Two blocks are under way at a time.
  static constexpr int kSlots = 2;

  [[nodiscard]] std::int64_t slot_bytes() const;
  [[nodiscard]] at::Tensor block_of(const at::Tensor& whole, int part, std::int64_t block) const;
  [[nodiscard]] at::Tensor slot(std::int64_t block, int peer) const;
  void post(std::int64_t block);
  void reduce(std::int64_t block);
  void send_to_peers(std::int64_t block);

  Transport& transport_;
  OperationScope scope_;
  Arguments arguments_;
  std::int64_t blocks_;
  at::Tensor scratch_;
  std::array<PendingTransfers, kSlots> incoming_;
  PendingTransfers outgoing_;  // and the reduced blocks that come back
};

}  // namespace troika::detail
