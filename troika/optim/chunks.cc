#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <troika/base/error.h>
#include <troika/optim/chunks.h>

#include <algorithm>

namespace troika {
namespace {

// Fewer chunks than this are not worth waking a thread for.
constexpr std::int64_t kChunksPerThread = 4;

}  // namespace

std::vector<Chunk> chunks_of(const Arena& arena) {
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < arena.parameters().size(); ++i) {
    const std::int64_t elements = arena.parameters()[i]->master().numel();
    for (std::int64_t begin = 0; begin < elements; begin += kChunkElements) {
      chunks.push_back({i, begin, std::min(kChunkElements, elements - begin)});
    }
  }
  return chunks;
}

void for_each_chunk(std::size_t count, const std::function<void(std::size_t)>& visit) {
  at::parallel_for(0, static_cast<std::int64_t>(count), kChunksPerThread,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) visit(static_cast<std::size_t>(i));
                   });
}

std::vector<double> fold_by_parameter(std::span<const Chunk> chunks,
                                      std::span<const double> of_chunk, std::size_t parameters) {
  std::vector<double> sums(parameters, 0.0);
  for (std::size_t i = 0; i < chunks.size(); ++i) sums[chunks[i].parameter] += of_chunk[i];
  return sums;
}

void require_gradients(const Arena& arena) {
  for (const auto& parameter : arena.parameters()) {
    if (parameter->claimed()) continue;
    throw InternalError("internal error: no gradient for '" + parameter->spec().name + "'",
                        "claim_zeroed() the parameters that a step does not use");
  }
}

}  // namespace troika
