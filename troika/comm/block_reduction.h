// Reduce-scatter in blocks: each member receives its part from all others, block by block, and
// folds one block while the next one travels. The memory it needs does not grow with the tensor.
#pragma once

#include <troika/comm/collectives.h>
#include <troika/comm/messages.h>

#include <array>

namespace troika::detail {

// What the folded blocks are for: this member alone, or (all_reduce) everybody, in place.
enum class Folded { kKept, kSpread };

class BlockReduction {
 public:
  struct Arguments {
    at::Tensor input;   // bytes, all parts
    at::Tensor output;  // bytes of this member's part; may lie in `input`
    Parts parts;
    at::ScalarType dtype;
    ReduceOp op;
    Folded folded;
  };

  // The bytes of scratch memory that run() needs.
  [[nodiscard]] static std::int64_t scratch_bytes(const Parts& parts, int size);

  BlockReduction(Link& link, const OperationScope& scope, Arguments arguments, at::Tensor scratch);
  void run();

 private:
  // Two blocks are under way at a time.
  static constexpr int kSlots = 2;
  // Small enough for the second-level cache, large enough that the handshake of a message does not
  // count; a whole number of elements of any dtype.
  static constexpr std::int64_t kBlockBytes = std::int64_t{256} << 10;

  [[nodiscard]] at::Tensor block_of(const at::Tensor& whole, int part, std::int64_t block) const;
  [[nodiscard]] at::Tensor slot(std::int64_t block, int peer) const;
  void post(std::int64_t block);
  void fold(std::int64_t block);
  void spread(std::int64_t block);

  Link& link_;
  OperationScope scope_;
  Arguments arguments_;
  at::Tensor scratch_;
  std::int64_t blocks_;
  std::array<Messages, kSlots> incoming_;
  Messages outgoing_;  // and the folded blocks that come back
};

}  // namespace troika::detail
