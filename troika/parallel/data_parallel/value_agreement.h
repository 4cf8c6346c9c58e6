// Internal. What comes of parameters that may not have the same values on all ranks.
#pragma once

#include <troika/parallel/data_parallel/replica_agreement.h>
#include <troika/session/session.h>

#include <cstdint>
#include <span>

namespace troika::detail {

// This rank's record of writes to the tensors since all ranks had the same values.
struct CountedWrites {
  std::int64_t count = 0;  // by autograd's version counters
  bool moved = false;      // a tensor has got other memory
};

enum class Agreement {
  kIdentical,    // all values have the same bits
  kSynchronised  // the ranks have taken those of rank 0
};

// Collective: compares the tensors of all ranks. If no rank knows of a write that others have not
// made, differences that rounding leaves in so many steps are mended. They arise between processors
// that compute in vectors of different widths, for example. The other ranks then take the values of
// rank 0, which counts as no write. Throws UsageError on every rank naming the first tensor that
// differs otherwise.
Agreement agree_on_values(const Session& session, std::span<const NamedTensor> tensors,
                          const CountedWrites& own);

}  // namespace troika::detail
