// Batch normalisation on the host. A channel's sums are those of chunks of rows, added up in fp64
// in their order, so that the bits depend on no number of threads. A chunk stays in cache: its
// variance is around its own mean, with no second pass over memory and no cancellation.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <troika/ops/cpu/widest_vectors.h>
#include <troika/ops/kernels.h>
#include <troika/ops/rows.h>

#include <algorithm>

namespace troika::ops::cpu {
namespace {

constexpr std::int64_t kChunkRows = 64;

std::int64_t chunks_of(std::int64_t rows) {
  return (rows + kChunkRows - 1) / kChunkRows;
}

// Calls `loop(chunk, begin, end)` for each chunk of rows.
template <typename Loop>
void for_chunks(std::int64_t rows, const Loop& loop) {
  at::parallel_for(0, chunks_of(rows), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t chunk = first; chunk < last; ++chunk) {
      const std::int64_t begin = chunk * kChunkRows, end = std::min(rows, begin + kChunkRows);
      vectorized_widely([&] { loop(chunk, begin, end); });
    }
  });
}

// Adds term(row, channel) to sums[channel] for the rows of a chunk; four at a time spare loads and
// stores of the sums.
template <typename Real, typename Term>
[[gnu::always_inline]] inline void add_rows(std::int64_t begin, std::int64_t end,
                                            std::int64_t channels, Real* __restrict sums,
                                            const Term& term) {
  std::int64_t row = begin;
  for (; row + 4 <= end; row += 4) {
    for (std::int64_t c = 0; c < channels; ++c) {
      sums[c] += (term(row, c) + term(row + 1, c)) + (term(row + 2, c) + term(row + 3, c));
    }
  }
  for (; row < end; ++row) {
    for (std::int64_t c = 0; c < channels; ++c) sums[c] += term(row, c);
  }
}

// Sets `means` and `squares` [chunks, channels] to each chunk's mean and squared differences from
// it.
template <typename Scalar, typename Real>
void chunk_moments(const Scalar* x, std::int64_t rows, std::int64_t channels, Real* means,
                   Real* squares) {
  for_chunks(rows, [=](std::int64_t chunk, std::int64_t begin, std::int64_t end) {
    Real* const mean = means + chunk * channels;
    const Real share = Real(1) / static_cast<Real>(end - begin);
    add_rows(begin, end, channels, mean, [=](std::int64_t row, std::int64_t c) {
      return static_cast<Real>(x[row * channels + c]);
    });
    for (std::int64_t c = 0; c < channels; ++c) mean[c] *= share;
    add_rows(begin, end, channels, squares + chunk * channels,
             [=](std::int64_t row, std::int64_t c) {
               const Real difference = static_cast<Real>(x[row * channels + c]) - mean[c];
               return difference * difference;
             });
  });
}

struct Moments {
  at::Tensor mean, variance;  // [channels]
};

// Chan, Golub and LeVeque (1979).
Moments moments_of_chunks(const at::Tensor& means, const at::Tensor& squares, std::int64_t rows) {
  const at::Tensor counts = at::full({means.size(0), 1}, kChunkRows, at::kDouble);
  counts[-1] = rows - (means.size(0) - 1) * kChunkRows;
  const at::Tensor wide = means.to(at::kDouble), count = counts / static_cast<double>(rows);
  const at::Tensor mean = (wide * count).sum(0);
  const at::Tensor variance = squares.to(at::kDouble).sum(0).div_(static_cast<double>(rows)) +
                              (wide - mean).square_().mul_(count).sum(0);
  return {mean.to(means.scalar_type()), variance.to(means.scalar_type())};
}

template <bool kRelu, bool kShortcut, typename Scalar, typename Real>
void normalise(const Scalar* x, const Scalar* shortcut, const Real* mean, const Real* factor,
               const Real* bias, std::int64_t rows, std::int64_t channels, Scalar* y) {
  for_chunks(rows, [=](std::int64_t, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const Scalar* const from = x + row * channels;
      const Scalar* const added = shortcut + (kShortcut ? row * channels : 0);
      Scalar* __restrict const to = y + row * channels;
      for (std::int64_t c = 0; c < channels; ++c) {
        Real value = (static_cast<Real>(from[c]) - mean[c]) * factor[c] + bias[c];
        if constexpr (kShortcut) value += static_cast<Real>(added[c]);
        if constexpr (kRelu) value = value < Real(0) ? Real(0) : value;  // NaN stays
        to[c] = static_cast<Scalar>(value);
      }
    }
  });
}

// The gradient in front of ReLU, which stops it where the output is 0; a NaN is not hidden.
template <bool kRelu, typename Scalar>
[[gnu::always_inline]] inline auto slope_at(const Scalar* dy, const Scalar* y, std::int64_t i) {
  using Real = at::opmath_type<Scalar>;
  const auto slope = static_cast<Real>(dy[i]);
  if constexpr (kRelu) return static_cast<Real>(y[i]) <= Real(0) ? Real(0) : slope;
  return slope;
}

template <bool kRelu, typename Scalar, typename Real>
void gradient_sums(const Scalar* dy, const Scalar* y, const Scalar* x, const Real* mean,
                   std::int64_t rows, std::int64_t channels, Real* sums, Real* products) {
  for_chunks(rows, [=](std::int64_t chunk, std::int64_t begin, std::int64_t end) {
    add_rows(begin, end, channels, sums + chunk * channels, [=](std::int64_t row, std::int64_t c) {
      return slope_at<kRelu>(dy, y, row * channels + c);
    });
    add_rows(begin, end, channels, products + chunk * channels,
             [=](std::int64_t row, std::int64_t c) {
               const std::int64_t i = row * channels + c;
               return slope_at<kRelu>(dy, y, i) * (static_cast<Real>(x[i]) - mean[c]);
             });
  });
}

// dx = (dy - mean(dy)) factor - (x - mean) of_products.
template <bool kRelu, typename Scalar, typename Real>
void input_gradient(const Scalar* dy, const Scalar* y, const Scalar* x, const Real* mean,
                    const Real* mean_slope, const Real* factor, const Real* of_products,
                    std::int64_t rows, std::int64_t channels, Scalar* dx, Scalar* of_shortcut) {
  for_chunks(rows, [=](std::int64_t, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t first = row * channels;
      Scalar* __restrict const to = dx + first;
      for (std::int64_t c = 0; c < channels; ++c) {
        const Real slope = slope_at<kRelu>(dy, y, first + c);
        to[c] = static_cast<Scalar>((slope - mean_slope[c]) * factor[c] -
                                    (static_cast<Real>(x[first + c]) - mean[c]) * of_products[c]);
      }
      if (!kRelu) continue;
      Scalar* __restrict const stopped = of_shortcut + first;
      for (std::int64_t c = 0; c < channels; ++c) {
        stopped[c] = static_cast<Scalar>(slope_at<kRelu>(dy, y, first + c));
      }
    }
  });
}

}  // namespace

ThreeTensors batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& shortcut,
                        const at::Tensor& weight, const at::Tensor& bias, double eps, bool relu) {
  const at::Tensor from = in_rows(input), added = shortcut ? in_rows(*shortcut) : at::Tensor();
  const std::int64_t rows = input.size(0), channels = input.size(1);
  const at::Tensor output = at::empty_like(from);
  const at::Tensor means = at::zeros({chunks_of(rows), channels}, weight.options());
  const at::Tensor squares = at::zeros_like(means);
  if (input.is_meta()) {  // a dry run: shapes alone
    return {output, at::empty_like(weight), at::empty_like(weight)};
  }
  Moments moments;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, input.scalar_type(), "batch_norm", [&] {
    using Real = at::opmath_type<scalar_t>;
    const auto* x = from.const_data_ptr<scalar_t>();
    chunk_moments(x, rows, channels, means.mutable_data_ptr<Real>(),
                  squares.mutable_data_ptr<Real>());
    moments = moments_of_chunks(means, squares, rows);
    const at::Tensor factor = (moments.variance + eps).rsqrt_().mul_(weight);
    const at::Tensor offset = in_rows(bias);
    const auto call = [&]<bool kRelu, bool kShortcut>() {
      normalise<kRelu, kShortcut>(x, kShortcut ? added.const_data_ptr<scalar_t>() : nullptr,
                                  moments.mean.const_data_ptr<Real>(),
                                  factor.const_data_ptr<Real>(), offset.const_data_ptr<Real>(),
                                  rows, channels, output.mutable_data_ptr<scalar_t>());
    };
    if (shortcut) {
      relu ? call.template operator()<true, true>() : call.template operator()<false, true>();
    } else {
      relu ? call.template operator()<true, false>() : call.template operator()<false, false>();
    }
  });
  return {output, moments.mean, moments.variance};
}

FourTensors batch_norm_backward(const at::Tensor& gradient, const at::Tensor& output,
                                const at::Tensor& input, const at::Tensor& weight,
                                const at::Tensor& mean, const at::Tensor& variance, double eps,
                                bool relu) {
  const at::Tensor slope = in_rows(gradient), after = in_rows(output), from = in_rows(input);
  const std::int64_t rows = input.size(0), channels = input.size(1);
  const at::Tensor dx = at::empty_like(from), of_shortcut = relu ? at::empty_like(from) : gradient;
  const at::Tensor sums = at::zeros({2, chunks_of(rows), channels}, weight.options());
  if (input.is_meta()) return {dx, of_shortcut, at::empty_like(weight), at::empty_like(weight)};
  const at::Tensor reciprocal = (variance + eps).rsqrt_();
  at::Tensor of_weight, of_bias;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, input.scalar_type(), "batch_norm_backward", [&] {
        using Real = at::opmath_type<scalar_t>;
        const auto* dy = slope.const_data_ptr<scalar_t>();
        const auto* y = after.const_data_ptr<scalar_t>();
        const auto* x = from.const_data_ptr<scalar_t>();
        const auto* m = mean.const_data_ptr<Real>();
        auto* partial = sums.mutable_data_ptr<Real>();
        auto* products = partial + chunks_of(rows) * channels;
        relu ? gradient_sums<true>(dy, y, x, m, rows, channels, partial, products)
             : gradient_sums<false>(dy, y, x, m, rows, channels, partial, products);
        const at::Tensor total = sums.sum(1, /*keepdim=*/false, at::kDouble);
        of_bias = total[0].to(weight.scalar_type());
        of_weight = (total[1] * reciprocal).to(weight.scalar_type());
        const auto count = static_cast<double>(rows);
        const at::Tensor mean_slope = (total[0] / count).to(weight.scalar_type());
        const at::Tensor factor = reciprocal * weight;
        const at::Tensor of_products =
            (total[1] / count * reciprocal * reciprocal * factor).to(weight.scalar_type());
        const auto call = [&]<bool kRelu>() {
          input_gradient<kRelu>(dy, y, x, m, mean_slope.const_data_ptr<Real>(),
                                factor.const_data_ptr<Real>(), of_products.const_data_ptr<Real>(),
                                rows, channels, dx.mutable_data_ptr<scalar_t>(),
                                relu ? of_shortcut.mutable_data_ptr<scalar_t>() : nullptr);
        };
        relu ? call.template operator()<true>() : call.template operator()<false>();
      });
  return {dx, of_shortcut, of_weight, of_bias};
}

}  // namespace troika::ops::cpu
