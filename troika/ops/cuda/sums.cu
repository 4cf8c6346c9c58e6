// Sums in a fixed order: of the squares of a tensor's elements, and of its columns. A block or a
// thread sums a part, and ATen the parts.
#include <troika/ops/cuda/common.cuh>

namespace troika::ops::cuda {
namespace {

template <class T>
__global__ void squares(const T* values, std::int64_t count, double* parts) {
  double sum = 0;
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const auto value = static_cast<double>(static_cast<Wide<T>>(values[i]));
    sum += value * value;
  }
  sum = over_block(sum, Add());
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// A thread has kWidth columns of a chunk of rows.
template <class T, int kWidth>
__global__ void columns(const T* values, Wide<T>* parts, std::int64_t rows, std::int64_t dim) {
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (pack * kWidth >= dim) return;
  const std::int64_t first = blockIdx.x * kRowsOfChunk;
  const std::int64_t last = first + kRowsOfChunk < rows ? first + kRowsOfChunk : rows;
  Pack<Wide<T>, kWidth> sums{};
  for (std::int64_t row = first; row < last; ++row) {
    const Pack<T, kWidth> part = packs_of<kWidth>(values + row * dim)[pack];
    for (int j = 0; j < kWidth; ++j) sums.of[j] += static_cast<Wide<T>>(part.of[j]);
  }
  for (int j = 0; j < kWidth; ++j) parts[blockIdx.x * dim + pack * kWidth + j] = sums.of[j];
}

}  // namespace

void launch(const SquareSum& call, Scalar scalar, cudaStream_t stream) {
  if (call.count == 0) return;
  with_type(scalar, [&](auto type) {
    using T = typename decltype(type)::type;
    const unsigned blocks = std::min<unsigned>(blocks_for(call.count), kSquareParts);
    start(squares<T>, blocks, stream, static_cast<const T*>(call.values), call.count, call.parts);
  });
}

void launch(const ColumnSums& call, Scalar scalar, cudaStream_t stream) {
  if (call.rows == 0) return;
  with_type(scalar, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kWidth = 2;
    const bool packs = call.dim % kWidth == 0 &&
                       reinterpret_cast<std::uintptr_t>(call.values) % (kWidth * sizeof(T)) == 0;
    const std::int64_t columns_of_block = packs ? kWidth * kThreads : kThreads;
    const dim3 grid(static_cast<unsigned>((call.rows + kRowsOfChunk - 1) / kRowsOfChunk),
                    static_cast<unsigned>((call.dim + columns_of_block - 1) / columns_of_block));
    start(packs ? columns<T, kWidth> : columns<T, 1>, grid, stream,
          static_cast<const T*>(call.values), static_cast<Wide<T>*>(call.parts), call.rows,
          call.dim);
  });
}

}  // namespace troika::ops::cuda
