// Softmax cross-entropy, a block of threads a row. With m the largest logit and s = sum exp(x - m):
//
//   loss = log s - (x[target] - m)                 in fp64
//   dx = scale (exp(x - m) / s - [target])         over the logits; 0 where the row is ignored
//
// Rows are summed by ATen, in a fixed order.
#include <troika/ops/cuda/common.cuh>

#include <cmath>

namespace troika::ops::cuda {
namespace {

template <class T>
__global__ void loss_rows(T* all_logits, const std::int64_t* targets, double* losses,
                          std::int64_t classes, bool writes_gradient, T scale) {
  T* logits = all_logits + blockIdx.x * classes;
  const std::int64_t target = targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    if (!writes_gradient) return;
    for (std::int64_t i = threadIdx.x; i < classes; i += kThreads) logits[i] = 0;
    return;
  }
  const T wanted = logits[target];  // before any thread writes: over_block() waits for all
  T largest = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < classes; i += kThreads) {
    largest = Larger()(logits[i], largest);
  }
  largest = over_block(largest, Larger());
  T sum = 0;
  for (std::int64_t i = threadIdx.x; i < classes; i += kThreads) sum += exp(logits[i] - largest);
  sum = over_block(sum, Add());
  if (threadIdx.x == 0) {
    losses[blockIdx.x] = log(static_cast<double>(sum)) -
                         (static_cast<double>(wanted) - static_cast<double>(largest));
  }
  if (!writes_gradient) return;
  for (std::int64_t i = threadIdx.x; i < classes; i += kThreads) {
    const T probability = exp(logits[i] - largest) / sum;
    logits[i] = scale * (probability - (i == target ? T(1) : T(0)));
  }
}

template <class T>
void launch_as(const CrossEntropy& call, cudaStream_t stream) {
  start(loss_rows<T>, static_cast<unsigned>(call.rows), stream, static_cast<T*>(call.logits),
        call.targets, call.losses, call.classes, call.writes_gradient, static_cast<T>(call.scale));
}

}  // namespace

void launch(const CrossEntropy& call, Scalar scalar, cudaStream_t stream) {
  if (call.rows == 0) return;
  scalar == Scalar::kDouble ? launch_as<double>(call, stream) : launch_as<float>(call, stream);
}

}  // namespace troika::ops::cuda
