// The arena cut into chunks of fixed size, none of which crosses a parameter. All loops of this
// folder run over chunks: threads take whole ones, and sums fold what each gave in a fixed order,
// so the bits depend neither on the number of threads nor on where parameters lie in memory.
#pragma once

#include <troika/param/arena.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace troika {

inline constexpr std::int64_t kChunkElements = 8192;

// Elements [begin, begin + count) of Arena::parameters()[parameter].
struct Chunk {
  std::size_t parameter;
  std::int64_t begin;
  std::int64_t count;
};

// In storage order.
[[nodiscard]] std::vector<Chunk> chunks_of(const Arena& arena);

// Calls `visit(index)` for each index in [0, count), on several threads where that pays.
void for_each_chunk(std::size_t count, const std::function<void(std::size_t)>& visit);

// Sums of `of_chunk` by parameter, each in the order of its chunks.
[[nodiscard]] std::vector<double> fold_by_parameter(std::span<const Chunk> chunks,
                                                    std::span<const double> of_chunk,
                                                    std::size_t parameters);

// Throws InternalError naming a parameter whose gradient this step has not claimed.
void require_gradients(const Arena& arena);

}  // namespace troika
