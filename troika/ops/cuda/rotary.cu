// Rotary position embedding in place, a thread a pair. Element i and i + half of a head, at a
// position whose table has cosines c and sines s (the opposite sign of s turns back):
//
//   x[i], x[i + half] = x[i] c[i] - x[i + half] s[i],  x[i + half] c[i] + x[i] s[i]
#include <troika/ops/cuda/common.cuh>

namespace troika::ops::cuda {
namespace {

template <class T>
__global__ void rotate(T* heads, const Wide<T>* table, Rotation call) {
  using Real = Wide<T>;
  const Real sign = call.backward ? Real(-1) : Real(1);
  const std::int64_t pairs = call.width / 2;  // of a token
  for (std::int64_t i = first_index(); i < call.tokens * pairs; i += index_step()) {
    const std::int64_t token = i / pairs, head = i % pairs / call.half, element = i % call.half;
    T* pair = heads + token * call.width + head * 2 * call.half + element;
    const std::int64_t angle = call.positions[token] * call.half + element;
    const Real cosine = table[angle];
    const Real sine = sign * table[call.table_positions * call.half + angle];
    const auto first = static_cast<Real>(pair[0]), second = static_cast<Real>(pair[call.half]);
    pair[0] = static_cast<T>(first * cosine - second * sine);
    pair[call.half] = static_cast<T>(second * cosine + first * sine);
  }
}

}  // namespace

void launch(const Rotation& call, Scalar scalar, cudaStream_t stream) {
  if (call.tokens == 0) return;
  with_type(scalar, [&](auto type) {
    using T = typename decltype(type)::type;
    start(rotate<T>, blocks_for(call.tokens * call.width / 2), stream, static_cast<T*>(call.heads),
          static_cast<const Wide<T>*>(call.table), call);
  });
}

}  // namespace troika::ops::cuda
