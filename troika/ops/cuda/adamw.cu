// AdamW over flat memory, a thread an element at a time (ops/adamw.h has the meaning of each):
//
//   g = scale x gradient,  m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//   w = shrink w - rate correction m / (sqrt(v) + eps)
#include <troika/ops/cuda/common.cuh>

namespace troika::ops::cuda {
namespace {

template <class T>
struct Constants {
  T keep_first, take_first, keep_second, take_second, correction, eps, rate, shrink;
};

template <class T>
__global__ void descend(T* master, const T* gradient, T* first, T* second, const double* scale_of,
                        const bool* applies, std::int64_t count, Constants<T> c) {
  if (!*applies) return;
  const auto scale = static_cast<T>(*scale_of);
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const T g = gradient[i] * scale;
    const T m = c.keep_first * first[i] + c.take_first * g;
    const T v = c.keep_second * second[i] + c.take_second * (g * g);
    first[i] = m;
    second[i] = v;
    master[i] = c.shrink * master[i] - c.rate * (c.correction * m / (sqrt(v) + c.eps));
  }
}

template <class T>
void launch_as(const AdamW& call, cudaStream_t stream) {
  const Constants<T> constants{static_cast<T>(call.beta1),      static_cast<T>(1 - call.beta1),
                               static_cast<T>(call.beta2),      static_cast<T>(1 - call.beta2),
                               static_cast<T>(call.correction), static_cast<T>(call.eps),
                               static_cast<T>(call.rate),       static_cast<T>(call.shrink)};
  start(descend<T>, blocks_for(call.count), stream, static_cast<T*>(call.master),
        static_cast<const T*>(call.gradient), static_cast<T*>(call.exp_avg),
        static_cast<T*>(call.exp_avg_sq), call.scale, call.applies, call.count, constants);
}

}  // namespace

void launch(const AdamW& call, Scalar scalar, cudaStream_t stream) {
  if (call.count == 0) return;
  scalar == Scalar::kDouble ? launch_as<double>(call, stream) : launch_as<float>(call, stream);
}

}  // namespace troika::ops::cuda
