// Internal. A look at the values of a module's parameters that takes a small part of what a pass
// does with them: in each pass at another part of them, and at all within kPasses. Ranks with the
// same values have the same digests, in whatever order they have them in memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/parallel/data/replica_agreement.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troika::detail {

class ValueDigest {
 public:
  static constexpr std::uint64_t kPasses = 64;

  explicit ValueDigest(std::span<const NamedTensor> tensors);

  // Of the part that is looked at in this pass.
  [[nodiscard]] std::uint64_t of_part(std::uint64_t pass) const;

 private:
  struct Place {
    std::size_t begin, end;  // bytes, as if all lay one after another
    at::Tensor tensor;
  };
  std::vector<Place> places_;
  std::size_t parts_ = 1, part_bytes_ = 0;
};

}  // namespace troika::detail
