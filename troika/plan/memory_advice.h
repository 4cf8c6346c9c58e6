// What to change in a recipe that needs more memory than a host has.
#pragma once

#include <troika/plan/memory_report.h>
#include <troika/recipe/recipe.h>

#include <cstdint>
#include <string>

namespace troika {

// Returns the first change after which no host of a job of `ranks`, each with `ranks_per_node` of
// them, needs more than `host_bytes`, and the bytes of the neediest host then. Changes are tried in
// this order, the least disturbing first: recomputing activations, smaller microbatches, ZeRO,
// tensor and pipeline parallelism in place of data parallelism. Then come full recomputation,
// microbatches of one sample and ZeRO 3 together, and these on longer tensor and pipeline axes. If
// none suffices, says so, and which of them needs least. `loaded` is not resolved.
[[nodiscard]] std::string memory_advice(const Recipe& loaded, int ranks, int ranks_per_node,
                                        std::uint64_t host_bytes);

// Throws UsageError with that advice as its hint if ranks `here` are going to need more than
// `host_bytes`. Allocates nothing of what it counts.
void check_memory_fits(const Recipe& loaded, int ranks, HostRanks here, std::uint64_t host_bytes);

}  // namespace troika
