// Internal. A hash of the values of a module's parameters whose cost is small beside that of a
// pass: each pass hashes another segment of them, and all are hashed within kPasses. Ranks with the
// same values have the same digests, in whatever order they have them in memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/parallel/data_parallel/replica_agreement.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troika::detail {

class ValueDigest {
 public:
  static constexpr std::uint64_t kPasses = 64;

  explicit ValueDigest(std::span<const NamedTensor> tensors);

  // Returns the digest of the segment that is hashed in this pass.
  [[nodiscard]] std::uint64_t of_segment(std::uint64_t pass) const;

 private:
  struct TensorRange {
    std::size_t begin, end;  // bytes, as if all lay one after another
    at::Tensor tensor;
  };
  std::vector<TensorRange> ranges_;
  std::size_t segments_ = 1, segment_bytes_ = 0;
};

}  // namespace troika::detail
