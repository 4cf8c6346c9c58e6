// Fits a recipe to a number of ranks: the size of the data axis, and whether the batch is large
// enough for it.
#pragma once

#include <troika/config/origins.h>
#include <troika/recipe/recipe.h>

#include <cstdint>
#include <optional>

namespace troika {

// The ranks of the run, where they are known: hints then name axes that fill them.
using KnownRanks = std::optional<std::int64_t>;

// Returns the product of the axes, with a data axis of one where it is "auto". Throws UsageError
// past the largest int.
[[nodiscard]] int smallest_world(const Recipe& recipe);

// Returns the number of islands that [sync] makes of `world_size` ranks; `host_ranks` of them
// share a host. Throws UsageError where they do not fit.
[[nodiscard]] int resolve_islands(const Recipe& recipe, int world_size, int host_ranks,
                                  const Origins& origins = Origins());

// Returns the size of the data axis in a world of `world_size` ranks. With elastic.min_data it may
// be smaller than parallel.data. Throws UsageError when the axes and the number of ranks do not
// fit, naming the nearest that do.
[[nodiscard]] int resolve_data_axis(const Recipe& recipe, int world_size,
                                    const Origins& origins = Origins());

// Throws UsageError, naming the nearest batch that works, unless every data-parallel rank gets a
// sample in every step.
void check_batch(const Recipe& recipe, int data_ranks, const Origins& origins = Origins());

// Returns the number of virtual stages of a pipeline rank. It is 2 for "zb-v" with any
// virtual_stages.
[[nodiscard]] std::int64_t virtual_stages_per_rank(const ParallelOptions& parallel);

// Returns whether the gradients of a stage's inputs and those of its weights are computed apart.
[[nodiscard]] bool splits_backward(const ParallelOptions& parallel);

// Returns whether gradients are reduced and cut after each microbatch.
[[nodiscard]] bool cuts_each_microbatch(const ParallelOptions& parallel);
// Returns whether data ranks exchange values or gradients in every microbatch, so that all of them
// have to run equally many.
[[nodiscard]] bool exchanges_each_microbatch(const ParallelOptions& parallel);

// Throws UsageError, naming the nearest that works, where the model or the schedule cannot be split
// as [parallel] says. It refuses more tensor ranks than heads, more stages than layers, a schedule
// that cannot have so many virtual stages, and stage_units that do not add up. It refuses selective
// recomputation of a model without attention, and gradients cut after each microbatch with a
// schedule that needs them whole. Where the data axis is known and fits the ranks, it
// refuses shards that do not divide it or a smaller batch.
void check_split(const Recipe& recipe, const Origins& origins = Origins(), KnownRanks ranks = {});

// Sets the sizes of the model that were left out from what the data say. Reads from their files.
// Throws UsageError naming a size that nothing says, and DataError.
void close_sizes(Recipe& recipe, const Origins& origins = Origins());

// Throws UsageError when the data has no paths to read from.
void check_paths(const Recipe& recipe, const Origins& origins = Origins());

// Returns the recipe of a run of `world_size` ranks; `host_ranks` of them share a host (0: all).
// All checks are made, and the islands and the data axis are numbers.
[[nodiscard]] Recipe resolve_recipe(const Recipe& recipe, int world_size,
                                    const Origins& origins = Origins(), int host_ranks = 0);

}  // namespace troika
