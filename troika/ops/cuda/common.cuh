// Internal: what the kernels have in common. Types of elements, loops over all threads, sums over a
// block of threads in a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <troika/ops/cuda/launch.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace troika::ops::cuda {

inline constexpr int kThreads = 256;  // of a block
inline constexpr int kLanes = 32;     // threads of a warp
inline constexpr std::int64_t kMostBlocks = 65536;

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
struct Type {
  using type = T;
};

// Calls `body` with the Type that stands for `scalar`.
template <class Body>
void with_type(Scalar scalar, const Body& body) {
  switch (scalar) {
    case Scalar::kDouble:
      return body(Type<double>{});
    case Scalar::kFloat:
      return body(Type<float>{});
    case Scalar::kHalf:
      return body(Type<__half>{});
    case Scalar::kBFloat16:
      return body(Type<__nv_bfloat16>{});
  }
}

// The blocks of a loop over `count` elements, a thread each as far as there are threads.
inline unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>((count + kThreads - 1) / kThreads, 1, kMostBlocks));
}

#ifdef __CUDACC__
// Queues a kernel of `grid` blocks, of kThreads threads each. Where the tests compile kernels for
// the host (tests/cuda/emulator.h) they have another, which runs them there.
template <class... Parameters>
void start(void (*kernel)(Parameters...), dim3 grid, cudaStream_t stream, Parameters... arguments) {
  kernel<<<grid, kThreads, 0, stream>>>(arguments...);
}
#endif

// The first element of this thread in such a loop, and the step to its next.
__device__ inline std::int64_t first_index() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t index_step() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

// Elements that a thread reads and writes at once.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T of[kWidth];
};

inline constexpr std::size_t kPackBytes = 16;

// Returns whether rows of `dim` elements that begin at `data` can be passed in packs of 16 bytes.
template <class T>
bool in_packs(const void* data, std::int64_t dim) {
  return reinterpret_cast<std::uintptr_t>(data) % kPackBytes == 0 &&
         dim % static_cast<std::int64_t>(kPackBytes / sizeof(T)) == 0;
}

template <int kWidth, class T>
__device__ const Pack<T, kWidth>* packs_of(const T* data) {
  return reinterpret_cast<const Pack<T, kWidth>*>(data);
}
template <int kWidth, class T>
__device__ Pack<T, kWidth>* packs_of(T* data) {
  return reinterpret_cast<Pack<T, kWidth>*>(data);
}

struct Add {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Larger {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// Returns the values of a warp's threads combined, to each of them, in a fixed order.
template <class T, class Combine>
__device__ T over_warp(T value, Combine combine) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(0xFFFFFFFF, value, offset));
  }
  return value;
}

// Returns the values of a block's kThreads threads combined, to each of them. The order is fixed:
// the same bits in each run.
template <class T, class Combine>
__device__ T over_block(T value, Combine combine) {
  __shared__ T of_warp[kThreads / kLanes];
  value = over_warp(value, combine);
  __syncthreads();  // what an earlier call left has been read
  if (threadIdx.x % kLanes == 0) of_warp[threadIdx.x / kLanes] = value;
  __syncthreads();
  T all = of_warp[0];
  for (int warp = 1; warp < kThreads / kLanes; ++warp) all = combine(all, of_warp[warp]);
  return all;
}

}  // namespace troika::ops::cuda
