// Softmax cross-entropy, a block of threads a row. With m the largest logit and s = sum exp(x - m):
//
//   loss = log s - (x[target] - m)                 in fp64
//   dx = scale (exp(x - m) / s - [target])         over the logits; 0 where the row is ignored
//
// m and s come in one pass: a thread scales its part of s whenever it meets a larger logit (Milakov
// and Gimelshein 2018, algorithm 3). Rows are summed by ATen, in a fixed order.
#include <troika/ops/cuda/common.cuh>

#include <cmath>

namespace troika::ops::cuda {
namespace {

// The largest of some logits, and the sum of exp(logit - largest).
template <class Real>
struct RowSum {
  Real largest = -INFINITY;
  Real sum = 0;

  template <class T, int kWidth>
  __device__ void add(const Pack<T, kWidth>& logits) {
    Real most = largest;
    for (int i = 0; i < kWidth; ++i) most = Larger()(static_cast<Real>(logits.of[i]), most);
    if (most > largest) {
      sum *= exp(largest - most);
      largest = most;
    }
    // While all are -inf there is nothing to scale by.
    const Real shift = largest == -INFINITY ? Real(0) : largest;
    for (int i = 0; i < kWidth; ++i) sum += exp(static_cast<Real>(logits.of[i]) - shift);
  }

  // Of all threads of the block, in each of them.
  __device__ RowSum over_all() const {
    RowSum all;
    all.largest = over_block(largest, Larger());
    const Real own = sum > Real(0) || sum != sum ? sum * exp(largest - all.largest) : Real(0);
    all.sum = over_block(own, Add());
    return all;
  }
};

template <class T, int kWidth>
__global__ void loss_rows(T* all_logits, const std::int64_t* targets, double* losses,
                          std::int64_t classes, bool writes_gradient, Wide<T> scale) {
  using Real = Wide<T>;
  using Packed = Pack<T, kWidth>;
  T* logits = all_logits + blockIdx.x * classes;
  auto* packs = reinterpret_cast<Packed*>(logits);
  const std::int64_t count = classes / kWidth, target = targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    if (!writes_gradient) return;
    for (std::int64_t i = threadIdx.x; i < classes; i += kThreads)
      logits[i] = static_cast<T>(Real(0));
    return;
  }
  const auto wanted = static_cast<Real>(logits[target]);  // over_all() waits, before any is written
  RowSum<Real> own;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) own.add(packs[i]);
  const RowSum<Real> row = own.over_all();
  if (threadIdx.x == 0) {
    losses[blockIdx.x] = log(static_cast<double>(row.sum)) -
                         (static_cast<double>(wanted) - static_cast<double>(row.largest));
  }
  if (!writes_gradient) return;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    Packed pack = packs[i];
    for (int j = 0; j < kWidth; ++j) {
      const Real probability = exp(static_cast<Real>(pack.of[j]) - row.largest) / row.sum;
      const bool is_target = i * kWidth + j == target;
      pack.of[j] = static_cast<T>(scale * (probability - (is_target ? Real(1) : Real(0))));
    }
    packs[i] = pack;
  }
}

template <class T, int kWidth>
void launch_in_packs(const CrossEntropy& call, cudaStream_t stream) {
  start(loss_rows<T, kWidth>, static_cast<unsigned>(call.rows), stream,
        static_cast<T*>(call.logits), call.targets, call.losses, call.classes, call.writes_gradient,
        static_cast<Wide<T>>(call.scale));
}

}  // namespace

void launch(const CrossEntropy& call, Scalar scalar, cudaStream_t stream) {
  if (call.rows == 0) return;
  with_type(scalar, [&](auto type) {
    using T = typename decltype(type)::type;
    if (in_packs<T>(call.logits, call.classes)) {
      launch_in_packs<T, kPackBytes / sizeof(T)>(call, stream);
    } else {
      launch_in_packs<T, 1>(call, stream);
    }
  });
}

}  // namespace troika::ops::cuda
