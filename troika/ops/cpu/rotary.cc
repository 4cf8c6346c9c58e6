// Rotary positions on the host (Su et al. 2021).
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <troika/ops/cpu/widest_vectors.h>
#include <troika/ops/kernels.h>
#include <troika/ops/rows.h>

namespace troika::ops::cpu {
namespace {

// Turns each number of `low` with that of `high`: the two halves of a head.
template <typename Scalar, typename Real>
[[gnu::always_inline]] inline void rotate_head(Scalar* __restrict low, Scalar* __restrict high,
                                               const Real* __restrict cosine,
                                               const Real* __restrict sine, Real sign,
                                               std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const auto first = static_cast<Real>(low[i]), second = static_cast<Real>(high[i]);
    const Real s = sign * sine[i];
    low[i] = static_cast<Scalar>(first * cosine[i] - second * s);
    high[i] = static_cast<Scalar>(second * cosine[i] + first * s);
  }
}

}  // namespace

void rotate_(const at::Tensor& heads, const at::Tensor& positions, const at::Tensor& table,
             bool backward) {
  if (heads.is_meta()) return;  // a dry run: shapes alone
  check_in_rows(heads, "what rotate_() turns");
  const at::Tensor places = in_rows(positions), angles = in_rows(table);
  const std::int64_t half = table.size(2), width = heads.size(1), tokens = heads.size(0);
  const auto* position = places.const_data_ptr<std::int64_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, heads.scalar_type(), "rotate", [&] {
    using Real = at::opmath_type<scalar_t>;
    auto* data = heads.mutable_data_ptr<scalar_t>();
    const auto* cosine = angles.const_data_ptr<Real>();
    const auto* sine = cosine + table.size(1) * half;
    const Real sign = backward ? Real(-1) : Real(1);
    at::parallel_for(0, tokens, 64, [&](std::int64_t begin, std::int64_t end) {
      vectorized_widely([&] {
        for (std::int64_t token = begin; token < end; ++token) {
          const std::int64_t row = position[token] * half;
          for (std::int64_t column = 0; column < width; column += 2 * half) {
            scalar_t* const head = data + token * width + column;
            rotate_head(head, head + half, cosine + row, sine + row, sign, half);
          }
        }
      });
    });
  });
}

}  // namespace troika::ops::cpu
