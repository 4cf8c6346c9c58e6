// Internal. What ranks tell each other in every step beside their gradients. Facts are averaged
// over all ranks like gradients, mostly in the padding of the last bucket, and so cost no
// collective of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troika::detail {

struct StepFacts {
  static constexpr std::int64_t kCount = 5;
  double weight = 1;    // of this rank
  double present = 1;   // 0 in join(): a rank without a batch, which does not look at parameters
  double checksum = 0;  // of parameters and writes to them, in 0..15: equal on all ranks
  double checksum_squared = 0;
  double alarm = 0;  // not 0: there is something to tell the others
};

// Returns whether a rank had a batch, from facts that were averaged over `ranks` ranks.
[[nodiscard]] bool any_present(const StepFacts& facts, int ranks);
// Returns whether a rank has an alarm, or whether the checksums of ranks differ while all of them
// have a batch. `facts` are averaged likewise.
[[nodiscard]] bool have_diverged(const StepFacts& facts, int ranks);

// Facts in memory that ranks reduce: kCount numbers of fp32 or fp64.
class FactsMemory {
 public:
  static constexpr std::int64_t kBytes = 64;

  FactsMemory() = default;
  FactsMemory(void* data, at::ScalarType dtype) : data_(data), dtype_(dtype) {}

  void write(const StepFacts& facts) const;
  [[nodiscard]] StepFacts read() const;

 private:
  void* data_ = nullptr;
  at::ScalarType dtype_ = at::kDouble;
};
static_assert(StepFacts::kCount * sizeof(double) <= FactsMemory::kBytes);

}  // namespace troika::detail
