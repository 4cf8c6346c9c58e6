// Root-mean-square normalisation, a block of threads a row:
//
//   y = x r w  with  r = 1 / sqrt(mean(x^2) + eps)
//   dx = r (w dy - n mean(w dy n))  and  dw = sum over rows of dy n,  with  n = x r
//
// dw is summed over chunks of rows in row order, and the chunks by ATen: the same bits in each run.
#include <troika/ops/cuda/common.cuh>

namespace troika::ops::cuda {
namespace {

template <class T>
__global__ void forward_rows(const T* input, const Wide<T>* weight, T* output, Wide<T>* reciprocal,
                             std::int64_t dim, Wide<T> eps) {
  using Real = Wide<T>;
  const T* x = input + blockIdx.x * dim;
  T* y = output + blockIdx.x * dim;
  Real square = 0;
  for (std::int64_t i = threadIdx.x; i < dim; i += kThreads) {
    const auto value = static_cast<Real>(x[i]);
    square += value * value;
  }
  square = over_block(square, Add());
  const Real r = Real(1) / sqrt(square / static_cast<Real>(dim) + eps);
  if (threadIdx.x == 0) reciprocal[blockIdx.x] = r;
  for (std::int64_t i = threadIdx.x; i < dim; i += kThreads) {
    y[i] = static_cast<T>(static_cast<Real>(x[i]) * r * weight[i]);
  }
}

template <class T>
__global__ void input_gradient_rows(const T* gradient, const T* input, const Wide<T>* weight,
                                    const Wide<T>* reciprocal, T* of_input, std::int64_t dim) {
  using Real = Wide<T>;
  const T* dy = gradient + blockIdx.x * dim;
  const T* x = input + blockIdx.x * dim;
  T* dx = of_input + blockIdx.x * dim;
  const Real r = reciprocal[blockIdx.x];
  Real dot = 0;
  for (std::int64_t i = threadIdx.x; i < dim; i += kThreads) {
    dot += static_cast<Real>(dy[i]) * weight[i] * static_cast<Real>(x[i]);
  }
  const Real correction = over_block(dot, Add()) * r * r / static_cast<Real>(dim);
  for (std::int64_t i = threadIdx.x; i < dim; i += kThreads) {
    const auto slope = static_cast<Real>(dy[i]) * weight[i];
    dx[i] = static_cast<T>(r * (slope - static_cast<Real>(x[i]) * correction));
  }
}

// A thread has a column of a chunk, so that neighbours read neighbours.
template <class T>
__global__ void weight_gradient_chunks(const T* gradient, const T* input, const Wide<T>* reciprocal,
                                       Wide<T>* partial, std::int64_t rows, std::int64_t dim) {
  using Real = Wide<T>;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (column >= dim) return;
  const std::int64_t first = blockIdx.x * kNormRows;
  const std::int64_t last = first + kNormRows < rows ? first + kNormRows : rows;
  Real sum = 0;
  for (std::int64_t row = first; row < last; ++row) {
    const std::int64_t i = row * dim + column;
    sum += static_cast<Real>(gradient[i]) * static_cast<Real>(input[i]) * reciprocal[row];
  }
  partial[blockIdx.x * dim + column] = sum;
}

}  // namespace

void launch(const RmsNorm& call, Scalar scalar, cudaStream_t stream) {
  if (call.rows == 0) return;
  with_type(scalar, [&](auto type) {
    using T = typename decltype(type)::type;
    using Real = Wide<T>;
    start(forward_rows<T>, static_cast<unsigned>(call.rows), stream,
          static_cast<const T*>(call.input), static_cast<const Real*>(call.weight),
          static_cast<T*>(call.output), static_cast<Real*>(call.reciprocal), call.dim,
          static_cast<Real>(call.eps));
  });
}

void launch(const RmsNormBackward& call, Scalar scalar, cudaStream_t stream) {
  if (call.rows == 0) return;
  with_type(scalar, [&](auto type) {
    using T = typename decltype(type)::type;
    using Real = Wide<T>;
    const auto* dy = static_cast<const T*>(call.gradient);
    const auto* x = static_cast<const T*>(call.input);
    const auto* r = static_cast<const Real*>(call.reciprocal);
    start(input_gradient_rows<T>, static_cast<unsigned>(call.rows), stream, dy, x,
          static_cast<const Real*>(call.weight), r, static_cast<T*>(call.of_input), call.dim);
    const auto chunks = static_cast<unsigned>((call.rows + kNormRows - 1) / kNormRows);
    const dim3 grid(chunks, static_cast<unsigned>((call.dim + kThreads - 1) / kThreads));
    start(weight_gradient_chunks<T>, grid, stream, dy, x, r, static_cast<Real*>(call.partial),
          call.rows, call.dim);
  });
}

}  // namespace troika::ops::cuda
