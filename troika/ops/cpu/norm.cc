// RMSNorm and its gradient on the host.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <troika/ops/cpu/widest_vectors.h>
#include <troika/ops/kernels.h>
#include <troika/ops/rows.h>

#include <cmath>

namespace troika::ops::cpu {
namespace {

constexpr std::int64_t kChunkRows = 64;

// Sum of f(i) for i in [0, n), in eight lanes that the compiler can keep in vector registers.
template <typename Real, typename Term>
[[gnu::always_inline]] inline Real lane_sum(std::int64_t n, const Term& term) {
  Real lanes[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int lane = 0; lane < 8; ++lane) lanes[lane] += term(i + lane);
  }
  Real sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
             ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  for (; i < n; ++i) sum += term(i);
  return sum;
}

template <typename Scalar, typename Real>
[[gnu::always_inline]] inline void forward_row(const Scalar* x, const Real* weight,
                                               Scalar* __restrict y, Real* reciprocal,
                                               std::int64_t dim, Real eps) {
  const Real square = lane_sum<Real>(dim, [&](std::int64_t i) {
    const auto value = static_cast<Real>(x[i]);
    return value * value;
  });
  const Real r = Real(1) / std::sqrt(square / static_cast<Real>(dim) + eps);
  *reciprocal = r;
  for (std::int64_t i = 0; i < dim; ++i) {
    y[i] = static_cast<Scalar>(static_cast<Real>(x[i]) * r * weight[i]);
  }
}

// With n = x r: dx = r (w dy - n mean(w dy n)), and dw += dy n.
template <typename Scalar, typename Real>
[[gnu::always_inline]] inline void backward_row(const Scalar* dy, const Scalar* x,
                                                const Real* weight, Real r, Scalar* __restrict dx,
                                                Real* __restrict dweight, std::int64_t dim) {
  const Real dot = lane_sum<Real>(dim, [&](std::int64_t i) {
    return static_cast<Real>(dy[i]) * weight[i] * static_cast<Real>(x[i]);
  });
  const Real correction = dot * r * r / static_cast<Real>(dim);
  for (std::int64_t i = 0; i < dim; ++i) {
    const auto value = static_cast<Real>(x[i]), slope = static_cast<Real>(dy[i]);
    dx[i] = static_cast<Scalar>(r * (slope * weight[i] - value * correction));
    dweight[i] += slope * value * r;
  }
}

}  // namespace

TwoTensors rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps) {
  const at::Tensor from = in_rows(input), scale = in_rows(weight);
  const std::int64_t rows = input.size(0), dim = input.size(1);
  TwoTensors result{at::empty_like(from), at::empty({rows}, weight.options())};
  if (input.is_meta()) return result;  // a dry run: shapes alone
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, input.scalar_type(), "rms_norm", [&] {
    using Real = at::opmath_type<scalar_t>;
    const auto* x = from.const_data_ptr<scalar_t>();
    const auto* w = scale.const_data_ptr<Real>();
    auto* y = std::get<0>(result).mutable_data_ptr<scalar_t>();
    auto* r = std::get<1>(result).mutable_data_ptr<Real>();
    at::parallel_for(0, rows, kChunkRows, [&](std::int64_t begin, std::int64_t end) {
      vectorized_widely([&] {
        for (std::int64_t row = begin; row < end; ++row) {
          forward_row(x + row * dim, w, y + row * dim, r + row, dim, static_cast<Real>(eps));
        }
      });
    });
  });
  return result;
}

TwoTensors rms_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                             const at::Tensor& weight, const at::Tensor& reciprocal) {
  const at::Tensor slope = in_rows(gradient), from = in_rows(input), scale = in_rows(weight);
  const at::Tensor factor = in_rows(reciprocal);
  const std::int64_t rows = input.size(0), dim = input.size(1);
  const std::int64_t chunks = (rows + kChunkRows - 1) / kChunkRows;
  const at::Tensor dx = at::empty_like(from);
  const at::Tensor partial = at::zeros({chunks, dim}, weight.options());
  const auto sum = [&] { return chunks == 1 ? partial.view({dim}) : partial.sum(0); };
  if (input.is_meta()) return {dx, sum()};  // a dry run: shapes alone
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, input.scalar_type(), "rms_norm_backward", [&] {
        using Real = at::opmath_type<scalar_t>;
        const auto* dy = slope.const_data_ptr<scalar_t>();
        const auto* x = from.const_data_ptr<scalar_t>();
        const auto* w = scale.const_data_ptr<Real>();
        const auto* r = factor.const_data_ptr<Real>();
        auto* out = dx.mutable_data_ptr<scalar_t>();
        auto* dw = partial.mutable_data_ptr<Real>();
        at::parallel_for(0, chunks, 1, [&](std::int64_t begin, std::int64_t end) {
          vectorized_widely([&] {
            for (std::int64_t row = begin * kChunkRows; row < std::min(rows, end * kChunkRows);
                 ++row) {
              backward_row(dy + row * dim, x + row * dim, w, r[row], out + row * dim,
                           dw + row / kChunkRows * dim, dim);
            }
          });
        });
      });
  return {dx, sum()};
}

}  // namespace troika::ops::cpu
