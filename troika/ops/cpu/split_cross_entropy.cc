// Softmax over classes that lie on several ranks, by the usual trick for a softmax in one pass:
// sums of exponentials relative to a slice's own largest logit are scaled to the largest of all
// (Milakov and Gimelshein 2018).
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <troika/ops/cpu/logit_rows.h>
#include <troika/ops/cpu/softmax_row.h>
#include <troika/ops/kernels.h>
#include <troika/ops/rows.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace troika::ops::cpu {
namespace {

constexpr std::int64_t kStatistics = 3;
enum Statistic : std::int64_t { kLargest, kSum, kTarget };
constexpr std::int64_t kNotHere = -1;  // of a target

// What all slices together say of a row.
struct RowFacts {
  double largest, sum, target;
};

class SliceStatistics {
 public:
  explicit SliceStatistics(const at::Tensor& slices)
      : memory_(in_rows(slices)),
        data_(memory_.const_data_ptr<double>()),
        slices_(slices.size(0)),
        rows_(slices.size(1)) {}

  [[nodiscard]] double of(std::int64_t slice, std::int64_t row, Statistic statistic) const {
    return data_[(slice * rows_ + row) * kStatistics + statistic];
  }
  [[nodiscard]] RowFacts together(std::int64_t row) const {
    RowFacts facts{-std::numeric_limits<double>::infinity(), 0, 0};
    for (std::int64_t slice = 0; slice < slices_; ++slice) {
      const double largest = of(slice, row, kLargest);
      // A NaN goes through, as it does in a softmax.
      if (largest > facts.largest || std::isnan(largest)) facts.largest = largest;
    }
    for (std::int64_t slice = 0; slice < slices_; ++slice) {
      facts.sum += of(slice, row, kSum) * std::exp(of(slice, row, kLargest) - facts.largest);
      facts.target += of(slice, row, kTarget);
    }
    return facts;
  }

 private:
  at::Tensor memory_;
  const double* data_;
  std::int64_t slices_, rows_;
};

// Writes the statistics of a row of a slice, whose target is `here` if that is one of its classes.
template <typename Scalar>
void write_statistics(const Scalar* logits, std::int64_t classes, std::int64_t here, double* out) {
  const auto largest = largest_logit(logits, classes);
  // While all are -inf, as those of classes that a model rules out may be, the sum is zero.
  const auto shift = std::isinf(largest) && largest < 0 ? 0 : largest;
  out[kLargest] = static_cast<double>(largest);
  out[kSum] = sum_of_exponentials(logits, classes, shift);
  out[kTarget] = here >= 0 && here < classes ? static_cast<double>(logits[here]) : 0;
}

// Overwrites a row of a slice with its gradient.
template <typename Scalar, typename Real = at::opmath_type<Scalar>>
void write_gradient(Scalar* logits, std::int64_t classes, std::int64_t here, const RowFacts& facts,
                    double scale) {
  const auto largest = static_cast<Real>(facts.largest);
  const auto to_probability = static_cast<Real>(1 / facts.sum), factor = static_cast<Real>(scale);
  const Real to_gradient = to_probability * factor;
  const bool has_target = here >= 0 && here < classes;
  const Real own = has_target ? static_cast<Real>(logits[here]) : largest;
  for (std::int64_t i = 0; i < classes; ++i) {
    const Real exponential = exponential_of_negative(static_cast<Real>(logits[i]) - largest);
    logits[i] = static_cast<Scalar>(exponential * to_gradient);
  }
  if (!has_target) return;
  const Real probability = exponential_of_negative(own - largest) * to_probability;
  logits[here] = static_cast<Scalar>((probability - Real(1)) * factor);
}

}  // namespace

at::Tensor cross_entropy_slice(const at::Tensor& logits, const at::Tensor& targets,
                               std::int64_t first_class) {
  const std::int64_t rows = targets.numel(), classes = logits.size(1);
  const at::Tensor statistics = at::empty({rows, kStatistics}, logits.options().dtype(at::kDouble));
  if (logits.is_meta()) return statistics;  // a dry run: shapes alone
  const at::Tensor values = in_rows(logits), wanted = in_rows(targets);
  const auto* target = wanted.const_data_ptr<std::int64_t>();
  auto* out = statistics.mutable_data_ptr<double>();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, values.scalar_type(), "cross_entropy_slice", [&] {
        const auto* data = values.const_data_ptr<scalar_t>();
        for_ranges_of_rows(rows, classes, [&](std::int64_t begin, std::int64_t end) {
          for_rows(begin, end, [&](std::int64_t row) {
            const std::int64_t here = target[row] < 0 ? kNotHere : target[row] - first_class;
            write_statistics(data + row * classes, classes, here, out + row * kStatistics);
          });
        });
      });
  return statistics;
}

at::Tensor cross_entropy_of_slices(const at::Tensor& slices, const at::Tensor& targets) {
  if (slices.is_meta()) return number_like(slices);
  const SliceStatistics statistics(slices);
  const at::Tensor wanted = in_rows(targets);
  const auto* target = wanted.const_data_ptr<std::int64_t>();
  double sum = 0;
  for (std::int64_t row = 0; row < wanted.numel(); ++row) {
    if (target[row] < 0) continue;
    const RowFacts facts = statistics.together(row);
    sum += std::log(facts.sum) + (facts.largest - facts.target);
  }
  return at::scalar_tensor(sum, at::kDouble);
}

void cross_entropy_gradient_of_slice_(const at::Tensor& logits, const at::Tensor& targets,
                                      std::int64_t first_class, const at::Tensor& slices,
                                      double scale) {
  if (logits.is_meta()) return;
  check_in_rows(logits, "what cross_entropy_gradient_of_slice_() overwrites");
  const SliceStatistics statistics(slices);
  const at::Tensor wanted = in_rows(targets);
  const std::int64_t rows = wanted.numel(), classes = logits.size(1);
  const auto* target = wanted.const_data_ptr<std::int64_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, logits.scalar_type(), "cross_entropy_gradient_of_slice", [&] {
        auto* data = logits.mutable_data_ptr<scalar_t>();
        for_ranges_of_rows(rows, classes, [&](std::int64_t begin, std::int64_t end) {
          for_rows(begin, end, [&](std::int64_t row) {
            scalar_t* const own = data + row * classes;
            if (target[row] < 0) {
              std::fill_n(own, classes, scalar_t(0));
            } else {
              write_gradient(own, classes, target[row] - first_class, statistics.together(row),
                             scale);
            }
          });
        });
      });
}

}  // namespace troika::ops::cpu
