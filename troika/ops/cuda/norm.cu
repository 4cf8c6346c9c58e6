// Normalisation of rows, a warp a row: by mean and variance (LayerNorm), or by the root mean square
// (RMSNorm), whose mean is 0 and which has no bias.
//
//   y = n w + b  with  n = (x - mean) r,  r = 1 / sqrt(mean((x - mean)^2) + eps)
//   dx = r (w dy - mean(w dy) - n mean(w dy n)),  dw = sum of dy n,  db = sum of dy  over rows
//
// RMSNorm's dx has no second term. dw and db are summed over chunks of rows in row order, and the
// chunks by ATen: the same bits in each run.
#include <troika/ops/cuda/common.cuh>

namespace troika::ops::cuda {
namespace {

constexpr int kRowsOfBlock = kThreads / kLanes;

__device__ inline std::int64_t row_of_warp() {
  return static_cast<std::int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.x / kLanes;
}

// Calls body(x, i) for the elements x = row[i] that this lane has.
template <int kWidth, class T, class Body>
__device__ void for_lane(const T* row, std::int64_t dim, const Body& body) {
  for (std::int64_t i = threadIdx.x % kLanes; i < dim / kWidth; i += kLanes) {
    const Pack<T, kWidth> pack = packs_of<kWidth>(row)[i];
    for (int j = 0; j < kWidth; ++j) body(static_cast<Wide<T>>(pack.of[j]), i * kWidth + j);
  }
}

template <class T, int kWidth>
__global__ void forward_rows(Norm call, Wide<T> eps) {
  using Real = Wide<T>;
  const std::int64_t row = row_of_warp(), dim = call.dim;
  if (row >= call.rows) return;
  const T* x = static_cast<const T*>(call.input) + row * dim;
  T* y = static_cast<T*>(call.output) + row * dim;
  const auto* weight = static_cast<const Real*>(call.weight);
  const auto* bias = static_cast<const Real*>(call.bias);
  auto* means = static_cast<Real*>(call.mean);
  Real mean = 0;
  if (means != nullptr) {
    for_lane<kWidth>(x, dim, [&](Real value, std::int64_t) { mean += value; });
    mean = over_warp(mean, Add()) / static_cast<Real>(dim);
  }
  Real square = 0;
  for_lane<kWidth>(x, dim,
                   [&](Real value, std::int64_t) { square += (value - mean) * (value - mean); });
  const Real r = Real(1) / sqrt(over_warp(square, Add()) / static_cast<Real>(dim) + eps);
  if (threadIdx.x % kLanes == 0) {
    if (means != nullptr) means[row] = mean;
    static_cast<Real*>(call.reciprocal)[row] = r;
  }
  for (std::int64_t i = threadIdx.x % kLanes; i < dim / kWidth; i += kLanes) {
    Pack<T, kWidth> pack = packs_of<kWidth>(x)[i];
    for (int j = 0; j < kWidth; ++j) {
      const Real scaled = (static_cast<Real>(pack.of[j]) - mean) * r * weight[i * kWidth + j];
      pack.of[j] = static_cast<T>(bias != nullptr ? scaled + bias[i * kWidth + j] : scaled);
    }
    packs_of<kWidth>(y)[i] = pack;
  }
}

template <class T, int kWidth>
__global__ void input_gradient_rows(NormBackward call) {
  using Real = Wide<T>;
  const std::int64_t row = row_of_warp(), dim = call.dim;
  if (row >= call.rows) return;
  const T* dy = static_cast<const T*>(call.gradient) + row * dim;
  const T* x = static_cast<const T*>(call.input) + row * dim;
  T* dx = static_cast<T*>(call.of_input) + row * dim;
  const auto* weight = static_cast<const Real*>(call.weight);
  const auto* means = static_cast<const Real*>(call.mean);
  const Real r = static_cast<const Real*>(call.reciprocal)[row];
  const Real mean = means != nullptr ? means[row] : Real(0);
  Real slopes = 0, dot = 0;
  for (std::int64_t i = threadIdx.x % kLanes; i < dim / kWidth; i += kLanes) {
    const Pack<T, kWidth> gradient = packs_of<kWidth>(dy)[i], input = packs_of<kWidth>(x)[i];
    for (int j = 0; j < kWidth; ++j) {
      const Real slope = static_cast<Real>(gradient.of[j]) * weight[i * kWidth + j];
      slopes += slope;
      dot += slope * (static_cast<Real>(input.of[j]) - mean) * r;
    }
  }
  dot = over_warp(dot, Add()) / static_cast<Real>(dim);
  slopes = means != nullptr ? over_warp(slopes, Add()) / static_cast<Real>(dim) : Real(0);
  for (std::int64_t i = threadIdx.x % kLanes; i < dim / kWidth; i += kLanes) {
    Pack<T, kWidth> gradient = packs_of<kWidth>(dy)[i];
    const Pack<T, kWidth> input = packs_of<kWidth>(x)[i];
    for (int j = 0; j < kWidth; ++j) {
      const Real slope = static_cast<Real>(gradient.of[j]) * weight[i * kWidth + j];
      const Real n = (static_cast<Real>(input.of[j]) - mean) * r;
      gradient.of[j] = static_cast<T>(r * (slope - slopes - n * dot));
    }
    packs_of<kWidth>(dx)[i] = gradient;
  }
}

// A thread has a column of a chunk, so that neighbours read neighbours.
template <class T>
__global__ void parameter_gradient_chunks(NormBackward call) {
  using Real = Wide<T>;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (column >= call.dim) return;
  const auto* means = static_cast<const Real*>(call.mean);
  const auto* reciprocal = static_cast<const Real*>(call.reciprocal);
  const std::int64_t first = blockIdx.x * kRowsOfChunk;
  const std::int64_t last = first + kRowsOfChunk < call.rows ? first + kRowsOfChunk : call.rows;
  Real weight = 0, bias = 0;
  for (std::int64_t row = first; row < last; ++row) {
    const std::int64_t i = row * call.dim + column;
    const Real dy = static_cast<Real>(static_cast<const T*>(call.gradient)[i]);
    const Real mean = means != nullptr ? means[row] : Real(0);
    weight +=
        dy * (static_cast<Real>(static_cast<const T*>(call.input)[i]) - mean) * reciprocal[row];
    bias += dy;
  }
  static_cast<Real*>(call.of_weight)[blockIdx.x * call.dim + column] = weight;
  if (call.of_bias != nullptr) {
    static_cast<Real*>(call.of_bias)[blockIdx.x * call.dim + column] = bias;
  }
}

unsigned blocks_of_rows(std::int64_t rows) {
  return static_cast<unsigned>((rows + kRowsOfBlock - 1) / kRowsOfBlock);
}

}  // namespace

void launch(const Norm& call, Scalar scalar, cudaStream_t stream) {
  if (call.rows == 0) return;
  with_type(scalar, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kWidth = kPackBytes / sizeof(T);
    const bool packs = in_packs<T>(call.input, call.dim) && in_packs<T>(call.output, call.dim);
    start(packs ? forward_rows<T, kWidth> : forward_rows<T, 1>, blocks_of_rows(call.rows), stream,
          call, static_cast<Wide<T>>(call.eps));
  });
}

void launch(const NormBackward& call, Scalar scalar, cudaStream_t stream) {
  if (call.rows == 0) return;
  with_type(scalar, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kWidth = kPackBytes / sizeof(T);
    const bool packs = in_packs<T>(call.input, call.dim) && in_packs<T>(call.gradient, call.dim) &&
                       in_packs<T>(call.of_input, call.dim);
    start(packs ? input_gradient_rows<T, kWidth> : input_gradient_rows<T, 1>,
          blocks_of_rows(call.rows), stream, call);
    const auto chunks = static_cast<unsigned>((call.rows + kRowsOfChunk - 1) / kRowsOfChunk);
    const dim3 grid(chunks, static_cast<unsigned>((call.dim + kThreads - 1) / kThreads));
    start(parameter_gradient_chunks<T>, grid, stream, call);
  });
}

}  // namespace troika::ops::cuda
