#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/optim/chunks.h>
#include <troika/optim/gradient_norm.h>
#include <troika/optim/square_sum.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace troika {
namespace {

// The sum of squares of each chunk's gradients.
template <typename T>
std::vector<double> chunk_squares(const Arena& arena, std::span<const Chunk> chunks) {
  std::vector<double> squares(chunks.size());
  for_each_chunk(chunks.size(), [&](std::size_t i) {
    const Chunk& chunk = chunks[i];
    const at::Tensor& gradient = arena.parameters()[chunk.parameter]->gradient();
    squares[i] = square_sum(gradient.const_data_ptr<T>() + chunk.begin, chunk.count);
  });
  return squares;
}

}  // namespace

double global_norm(const Arena& arena) {
  require_gradients(arena);
  const auto parameters = arena.parameters();
  const std::vector<Chunk> chunks = chunks_of(arena);
  const std::vector<double> squares =
      fold_by_parameter(chunks,
                        arena.types().master == at::kDouble ? chunk_squares<double>(arena, chunks)
                                                            : chunk_squares<float>(arena, chunks),
                        parameters.size());

  std::vector<std::size_t> by_name(parameters.size());
  std::iota(by_name.begin(), by_name.end(), std::size_t{0});
  std::ranges::sort(
      by_name, {}, [&](std::size_t i) -> const std::string& { return parameters[i]->spec().name; });
  double sum = 0;
  for (const std::size_t i : by_name) sum += squares[i];
  return std::sqrt(sum);
}

double clip_factor(double norm, double max_norm) {
  check(std::isfinite(norm), "clipping by a norm that is not finite");
  if (max_norm == 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace troika
