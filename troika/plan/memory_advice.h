// What to change in a recipe that needs more memory than a host or a device has.
#pragma once

#include <troika/plan/memory_report.h>
#include <troika/recipe/recipe.h>

#include <cstdint>
#include <string>

namespace troika {

// Returns the first change after which no host of the job needs more than `memory`. Also says what
// the neediest host then needs; where devices are too small, the neediest device. The job has
// `ranks` ranks, `ranks_per_node` of them on each host. Changes are tried in this order, the least
// disturbing first: recomputing activations, smaller microbatches, ZeRO, tensor and pipeline
// parallelism in place of data parallelism. Then come full recomputation, microbatches of one
// sample and ZeRO 3 together, and these on longer tensor and pipeline axes. If none suffices, says
// so, and which of them needs least. `loaded` is not resolved.
[[nodiscard]] std::string memory_advice(const Recipe& loaded, int ranks, int ranks_per_node,
                                        const HostMemory& memory);

// Returns advice after a device was full in spite of its prediction: a process takes more of it
// than tensors. It is the first change after which devices need at most three quarters of what is
// predicted for `loaded`. Empty where nothing can be predicted.
[[nodiscard]] std::string advice_after_full_device(const Recipe& loaded, int ranks,
                                                   int ranks_per_node, HostMemory memory);

// Throws UsageError with that advice as its hint if ranks `here` are going to need more than
// `memory`, which is theirs. Allocates nothing of what it counts.
void check_memory_fits(const Recipe& loaded, int ranks, HostRanks here, const HostMemory& memory);

}  // namespace troika
