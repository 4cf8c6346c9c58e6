// The cross-entropy on the host. A row of logits is passed over while it is in cache: for its
// largest, for the exponentials, which a thread keeps in a row of its own, and for the gradient.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <troika/ops/cpu/logit_rows.h>
#include <troika/ops/cpu/softmax_row.h>
#include <troika/ops/kernels.h>
#include <troika/ops/rows.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace troika::ops::cpu {
namespace {

template <typename Scalar>
double loss_of_row(const Scalar* logits, std::int64_t classes, std::int64_t target) {
  const auto largest = largest_logit(logits, classes);
  const double sum = sum_of_exponentials(logits, classes, largest);
  return std::log(sum) + (static_cast<double>(largest) - static_cast<double>(logits[target]));
}

// Overwrites the logits with the gradient. `row` has room for as many numbers.
template <typename Scalar, typename Real>
double loss_of_row_with_gradient(Scalar* logits, std::int64_t classes, std::int64_t target,
                                 Real scale, Real* row) {
  const Real largest = largest_logit(logits, classes);
  const double sum = sum_of_blocks(classes, [&](std::int64_t begin, std::int64_t count) {
    return write_exponentials(logits + begin, count, largest, row + begin);
  });
  const double loss =
      std::log(sum) + (static_cast<double>(largest) - static_cast<double>(logits[target]));
  const auto to_probability = static_cast<Real>(1 / sum);
  const Real to_gradient = to_probability * scale;
  for (std::int64_t i = 0; i < classes; ++i) logits[i] = static_cast<Scalar>(row[i] * to_gradient);
  logits[target] = static_cast<Scalar>((row[target] * to_probability - Real(1)) * scale);
  return loss;
}

// Adds up losses in row order, with any number of threads.
at::Tensor number_of(const std::vector<double>& losses) {
  return at::scalar_tensor(std::accumulate(losses.begin(), losses.end(), 0.0), at::kDouble);
}

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  if (logits.is_meta()) return number_like(logits);  // a dry run: shapes alone
  const at::Tensor values = in_rows(logits), wanted = in_rows(targets);
  const std::int64_t rows = wanted.numel(), classes = values.size(1);
  const auto* target = wanted.const_data_ptr<std::int64_t>();
  std::vector<double> losses(static_cast<std::size_t>(rows));
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, values.scalar_type(), "cross_entropy", [&] {
        const auto* data = values.const_data_ptr<scalar_t>();
        for_ranges_of_rows(rows, classes, [&](std::int64_t begin, std::int64_t end) {
          for_rows(begin, end, [&](std::int64_t row) {
            if (target[row] < 0) return;
            losses[static_cast<std::size_t>(row)] =
                loss_of_row(data + row * classes, classes, target[row]);
          });
        });
      });
  return number_of(losses);
}

at::Tensor cross_entropy_with_gradient_(const at::Tensor& logits, const at::Tensor& targets,
                                        double scale) {
  if (logits.is_meta()) return number_like(logits);
  check_in_rows(logits, "what cross_entropy_with_gradient_() overwrites");
  const at::Tensor wanted = in_rows(targets);
  const std::int64_t rows = wanted.numel(), classes = logits.size(1);
  const auto* target = wanted.const_data_ptr<std::int64_t>();
  std::vector<double> losses(static_cast<std::size_t>(rows));
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, logits.scalar_type(), "cross_entropy_with_gradient", [&] {
        using Real = at::opmath_type<scalar_t>;
        auto* data = logits.mutable_data_ptr<scalar_t>();
        for_ranges_of_rows(rows, classes, [&](std::int64_t begin, std::int64_t end) {
          std::vector<Real> exponentials(static_cast<std::size_t>(classes));
          for_rows(begin, end, [&](std::int64_t row) {
            scalar_t* const own = data + row * classes;
            if (target[row] < 0) {
              std::fill_n(own, classes, scalar_t(0));
              return;
            }
            losses[static_cast<std::size_t>(row)] = loss_of_row_with_gradient(
                own, classes, target[row], static_cast<Real>(scale), exponentials.data());
          });
        });
      });
  return number_of(losses);
}

}  // namespace troika::ops::cpu
