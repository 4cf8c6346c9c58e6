// Sums of squares of whole shards, by ATen's operators: what square_sum.h is for chunks in the
// host's memory. Internal to this folder.
#pragma once

#include <troika/param/arena.h>

#include <span>
#include <vector>

namespace troika::detail {

// Returns a value for each of chunks_of(arena): at a shard's first chunk the sum of squares, in
// fp64, of the elements of `values` that norms count; at the others 0. `values` has one tensor a
// shard, on the arena's device; an undefined one counts as zero. Waits for the device once.
[[nodiscard]] std::vector<double> squares_of_shards(const Arena& arena,
                                                    std::span<const at::Tensor> values);

}  // namespace troika::detail
