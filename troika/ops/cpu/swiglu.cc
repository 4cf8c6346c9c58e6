// The gated activation on the host, with the bits that an element has at any place.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <troika/ops/cpu/exponential.h>
#include <troika/ops/cpu/widest_vectors.h>
#include <troika/ops/kernels.h>
#include <troika/ops/rows.h>

namespace troika::ops::cpu {
namespace {

constexpr std::int64_t kElementsAThread = std::int64_t{1} << 14;

template <typename Real>
[[gnu::always_inline]] inline Real sigmoid(Real x) {
  const Real small = exponential_of_negative(x < Real(0) ? x : -x);
  return (x < Real(0) ? small : Real(1)) / (Real(1) + small);
}

template <typename Scalar, typename Real = at::opmath_type<Scalar>>
[[gnu::always_inline]] inline void forward(const Scalar* __restrict gate,
                                           const Scalar* __restrict up, Scalar* __restrict out,
                                           std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto g = static_cast<Real>(gate[i]);
    out[i] = static_cast<Scalar>(g * sigmoid(g) * static_cast<Real>(up[i]));
  }
}

// With s = sigmoid(gate): dgate = dy up s (1 + gate (1 - s)), and dup = dy gate s.
template <typename Scalar, typename Real = at::opmath_type<Scalar>>
[[gnu::always_inline]] inline void backward(const Scalar* __restrict gradient,
                                            const Scalar* __restrict gate,
                                            const Scalar* __restrict up, Scalar* __restrict of_gate,
                                            Scalar* __restrict of_up, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto dy = static_cast<Real>(gradient[i]), g = static_cast<Real>(gate[i]);
    const Real s = sigmoid(g), slope = s * (Real(1) + g * (Real(1) - s));
    of_gate[i] = static_cast<Scalar>(dy * static_cast<Real>(up[i]) * slope);
    of_up[i] = static_cast<Scalar>(dy * (g * s));
  }
}

// Calls `loop(begin, end)` for ranges of n elements.
template <typename Loop>
void for_ranges(std::int64_t n, const Loop& loop) {
  at::parallel_for(0, n, kElementsAThread, [&](std::int64_t begin, std::int64_t end) {
    vectorized_widely([&] { loop(begin, end); });
  });
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  const at::Tensor gates = in_rows(gate), ups = in_rows(up), output = at::empty_like(gates);
  if (gate.is_meta()) return output;  // a dry run: shapes alone
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, gate.scalar_type(), "swiglu", [&] {
    const auto* g = gates.const_data_ptr<scalar_t>();
    const auto* u = ups.const_data_ptr<scalar_t>();
    auto* out = output.mutable_data_ptr<scalar_t>();
    for_ranges(gates.numel(), [&](std::int64_t begin, std::int64_t end) {
      forward(g + begin, u + begin, out + begin, end - begin);
    });
  });
  return output;
}

TwoTensors swiglu_backward(const at::Tensor& gradient, const at::Tensor& gate,
                           const at::Tensor& up) {
  const at::Tensor slope = in_rows(gradient), gates = in_rows(gate), ups = in_rows(up);
  TwoTensors result{at::empty_like(gates), at::empty_like(ups)};
  if (gate.is_meta()) return result;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, gate.scalar_type(), "swiglu_backward", [&] {
        const auto* dy = slope.const_data_ptr<scalar_t>();
        const auto* g = gates.const_data_ptr<scalar_t>();
        const auto* u = ups.const_data_ptr<scalar_t>();
        auto* of_gate = std::get<0>(result).mutable_data_ptr<scalar_t>();
        auto* of_up = std::get<1>(result).mutable_data_ptr<scalar_t>();
        for_ranges(gates.numel(), [&](std::int64_t begin, std::int64_t end) {
          backward(dy + begin, g + begin, u + begin, of_gate + begin, of_up + begin, end - begin);
        });
      });
  return result;
}

}  // namespace troika::ops::cpu
