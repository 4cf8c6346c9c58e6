// The arena's shards of trained parameters cut into chunks of fixed size, counted from the start of
// a parameter. All loops of this folder run over chunks: threads take whole ones, and sums add what
// each gave in a fixed order, so the bits depend neither on the number of threads, nor on where
// parameters lie in memory, nor on the ranks among which they are cut.
#pragma once

#include <troika/param/arena.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace troika {

// The elements [begin, begin + count) of Arena::parameters()[parameter], in
// Arena::trained_shards()[shard].
struct Chunk {
  std::size_t shard;
  std::size_t parameter;
  std::int64_t begin;
  std::int64_t count;
  std::int64_t counted;  // the leading ones that count in norms on this rank (ParameterSpec::owned)

  // Returns its offset in its shard.
  [[nodiscard]] std::int64_t offset_in(const LocalShard& own) const { return begin - own.begin; }
};

// Returns the chunks of this rank's trained shards, in storage order.
[[nodiscard]] std::vector<Chunk> chunks_of(const Arena& arena);

// Calls `visit(index)` for each index in [0, count), on several threads where that pays.
void for_each_chunk(std::size_t count, const std::function<void(std::size_t)>& visit);

// Throws InternalError naming a trained parameter whose gradient this step has not claimed.
void require_gradients(const Arena& arena);

}  // namespace troika
