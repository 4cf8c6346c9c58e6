#include <troika/base/error.h>
#include <troika/base/vectorize.h>
#include <troika/comm/reduce.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>

namespace troika {
namespace {

// What values of a type are accumulated in. Unsigned, so that integers wrap without undefined
// behaviour.
template <class T>
struct Accumulator {
  using Type = T;
};
template <>
struct Accumulator<c10::Half> {
  using Type = float;
};
template <>
struct Accumulator<c10::BFloat16> {
  using Type = float;
};

template <class A>
struct Sum {
  A operator()(A a, A b) const {
    if constexpr (std::is_integral_v<A>) {
      using Unsigned = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  }
};

template <class A>
bool is_nan(A value) {
  if constexpr (std::is_floating_point_v<A>) return std::isnan(value);
  return false;
}

// A comparison with a NaN is false: `a` stays if it is one, and `b` is taken if that is one.
template <class A>
struct Max {
  A operator()(A a, A b) const { return a > b || is_nan(a) ? a : b; }
};
template <class A>
struct Min {
  A operator()(A a, A b) const { return a < b || is_nan(a) ? a : b; }
};

// `output` may be one of the inputs.
template <class T, class Combine, class Finish>
void reduce_pair(const T* a, const T* b, T* output, std::int64_t count, Combine combine,
                 Finish finish) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) output[i] = finish(combine(a[i], b[i]));
}

// Tile by tile, so that the values between two members' stay in the first-level cache.
template <class T, class Combine, class Finish>
void reduce_tiles(std::span<const std::byte* const> inputs, std::byte* output, std::int64_t count,
                  Combine combine, Finish finish) {
  using A = typename Accumulator<T>::Type;
  constexpr std::int64_t kTile = 1024;
  alignas(64) std::array<A, kTile> accumulated;
  for (std::int64_t start = 0; start < count; start += kTile) {
    const std::int64_t n = std::min(kTile, count - start);
    const T* first = reinterpret_cast<const T*>(inputs[0]) + start;
    for (std::int64_t i = 0; i < n; ++i) accumulated[i] = static_cast<A>(first[i]);
    for (std::size_t member = 1; member < inputs.size(); ++member) {
      const T* next = reinterpret_cast<const T*>(inputs[member]) + start;
      for (std::int64_t i = 0; i < n; ++i)
        accumulated[i] = combine(accumulated[i], static_cast<A>(next[i]));
    }
    T* out = reinterpret_cast<T*>(output) + start;
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(finish(accumulated[i]));
  }
}

template <class T, class Combine, class Finish>
void reduce_with(std::span<const std::byte* const> inputs, std::byte* output, std::int64_t count,
                 Combine combine, Finish finish) {
  vectorized([&] {
    if constexpr (std::is_same_v<T, typename Accumulator<T>::Type>) {
      if (inputs.size() == 2) {
        return reduce_pair(reinterpret_cast<const T*>(inputs[0]),
                           reinterpret_cast<const T*>(inputs[1]), reinterpret_cast<T*>(output),
                           count, combine, finish);
      }
    }
    reduce_tiles<T>(inputs, output, count, combine, finish);
  });
}

template <class T>
void reduce_typed(ReduceOp op, std::span<const std::byte* const> inputs, std::byte* output,
                  std::int64_t count) {
  using A = typename Accumulator<T>::Type;
  const auto as_is = [](A value) { return value; };
  const auto size = static_cast<A>(inputs.size());
  switch (op) {
    case ReduceOp::kSum:
      return reduce_with<T>(inputs, output, count, Sum<A>(), as_is);
    case ReduceOp::kAverage:
      if (std::is_floating_point_v<A> && std::has_single_bit(inputs.size())) {
        // The same bits, faster.
        return reduce_with<T>(inputs, output, count, Sum<A>(),
                              [part = 1 / size](A value) { return static_cast<A>(value * part); });
      }
      return reduce_with<T>(inputs, output, count, Sum<A>(),
                            [size](A value) { return static_cast<A>(value / size); });
    case ReduceOp::kMax:
      return reduce_with<T>(inputs, output, count, Max<A>(), as_is);
    case ReduceOp::kMin:
      return reduce_with<T>(inputs, output, count, Min<A>(), as_is);
  }
}

}  // namespace

void reduce_in_rank_order(at::ScalarType dtype, ReduceOp op,
                          std::span<const std::byte* const> inputs, std::byte* output,
                          std::int64_t count) {
  switch (dtype) {
    case at::kDouble:
      return reduce_typed<double>(op, inputs, output, count);
    case at::kFloat:
      return reduce_typed<float>(op, inputs, output, count);
    case at::kBFloat16:
      return reduce_typed<c10::BFloat16>(op, inputs, output, count);
    case at::kHalf:
      return reduce_typed<c10::Half>(op, inputs, output, count);
    case at::kLong:
      return reduce_typed<std::int64_t>(op, inputs, output, count);
    case at::kInt:
      return reduce_typed<std::int32_t>(op, inputs, output, count);
    case at::kByte:
      return reduce_typed<std::uint8_t>(op, inputs, output, count);
    default:
      throw InternalError("internal error: reduction of an unknown dtype");
  }
}

}  // namespace troika
