#include <troika/base/error.h>
#include <troika/base/vectorize.h>
#include <troika/comm/fold.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>

namespace troika {
namespace {

// What values of a type are folded in. Unsigned, so that integers wrap without undefined behaviour.
template <class T>
struct Folded {
  using Type = T;
};
template <>
struct Folded<c10::Half> {
  using Type = float;
};
template <>
struct Folded<c10::BFloat16> {
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
void fold_pair(const T* a, const T* b, T* output, std::int64_t count, Combine combine,
               Finish finish) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) output[i] = finish(combine(a[i], b[i]));
}

// Tile by tile, so that the values between two members' stay in the first-level cache.
template <class T, class Combine, class Finish>
void fold_tiles(std::span<const std::byte* const> inputs, std::byte* output, std::int64_t count,
                Combine combine, Finish finish) {
  using A = typename Folded<T>::Type;
  constexpr std::int64_t kTile = 1024;
  alignas(64) std::array<A, kTile> folded;
  for (std::int64_t start = 0; start < count; start += kTile) {
    const std::int64_t n = std::min(kTile, count - start);
    const T* first = reinterpret_cast<const T*>(inputs[0]) + start;
    for (std::int64_t i = 0; i < n; ++i) folded[i] = static_cast<A>(first[i]);
    for (std::size_t member = 1; member < inputs.size(); ++member) {
      const T* next = reinterpret_cast<const T*>(inputs[member]) + start;
      for (std::int64_t i = 0; i < n; ++i) folded[i] = combine(folded[i], static_cast<A>(next[i]));
    }
    T* out = reinterpret_cast<T*>(output) + start;
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(finish(folded[i]));
  }
}

template <class T, class Combine, class Finish>
void fold_with(std::span<const std::byte* const> inputs, std::byte* output, std::int64_t count,
               Combine combine, Finish finish) {
  vectorized([&] {
    if constexpr (std::is_same_v<T, typename Folded<T>::Type>) {
      if (inputs.size() == 2) {
        return fold_pair(reinterpret_cast<const T*>(inputs[0]),
                         reinterpret_cast<const T*>(inputs[1]), reinterpret_cast<T*>(output), count,
                         combine, finish);
      }
    }
    fold_tiles<T>(inputs, output, count, combine, finish);
  });
}

template <class T>
void fold_typed(ReduceOp op, std::span<const std::byte* const> inputs, std::byte* output,
                std::int64_t count) {
  using A = typename Folded<T>::Type;
  const auto as_is = [](A value) { return value; };
  const auto size = static_cast<A>(inputs.size());
  switch (op) {
    case ReduceOp::kSum:
      return fold_with<T>(inputs, output, count, Sum<A>(), as_is);
    case ReduceOp::kAverage:
      if (std::is_floating_point_v<A> && std::has_single_bit(inputs.size())) {
        // The same bits, faster.
        return fold_with<T>(inputs, output, count, Sum<A>(),
                            [part = 1 / size](A value) { return static_cast<A>(value * part); });
      }
      return fold_with<T>(inputs, output, count, Sum<A>(),
                          [size](A value) { return static_cast<A>(value / size); });
    case ReduceOp::kMax:
      return fold_with<T>(inputs, output, count, Max<A>(), as_is);
    case ReduceOp::kMin:
      return fold_with<T>(inputs, output, count, Min<A>(), as_is);
  }
}

}  // namespace

void fold(at::ScalarType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
          std::byte* output, std::int64_t count) {
  switch (dtype) {
    case at::kDouble:
      return fold_typed<double>(op, inputs, output, count);
    case at::kFloat:
      return fold_typed<float>(op, inputs, output, count);
    case at::kBFloat16:
      return fold_typed<c10::BFloat16>(op, inputs, output, count);
    case at::kHalf:
      return fold_typed<c10::Half>(op, inputs, output, count);
    case at::kLong:
      return fold_typed<std::int64_t>(op, inputs, output, count);
    case at::kInt:
      return fold_typed<std::int32_t>(op, inputs, output, count);
    case at::kByte:
      return fold_typed<std::uint8_t>(op, inputs, output, count);
    default:
      throw InternalError("internal error: fold of an unknown dtype");
  }
}

}  // namespace troika
