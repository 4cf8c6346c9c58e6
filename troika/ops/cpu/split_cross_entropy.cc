// Softmax over classes that lie on several ranks, by the usual trick for a softmax in one pass:
// sums of exponentials relative to a slice's own largest logit are scaled to the largest of all
// (Milakov and Gimelshein 2018).
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <troika/ops/kernels.h>
#include <troika/ops/rows.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace troika::ops::cpu {
namespace {

constexpr std::int64_t kStatistics = 3;
enum Statistic : std::int64_t { kLargest, kSum, kTarget };

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

// Logits of the targets that lie in this slice.
void read_targets(const at::Tensor& logits, const at::Tensor& targets, std::int64_t first_class,
                  const at::Tensor& statistics) {
  if (logits.is_meta()) return;  // a dry run: shapes alone
  const at::Tensor wanted = in_rows(targets);
  const std::int64_t rows = wanted.numel(), classes = logits.size(1);
  const auto* target = wanted.const_data_ptr<std::int64_t>();
  auto* out = statistics.mutable_data_ptr<double>();
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "read_targets", [&] {
    const auto* data = logits.const_data_ptr<scalar_t>();
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t here = target[row] - first_class;
      if (target[row] < 0 || here < 0 || here >= classes) continue;
      out[row * kStatistics + kTarget] = static_cast<double>(data[row * classes + here]);
    }
  });
}

}  // namespace

at::Tensor cross_entropy_slice_(const at::Tensor& logits, const at::Tensor& targets,
                                std::int64_t first_class) {
  check_in_rows(logits, "what cross_entropy_slice_() overwrites");
  const at::Tensor statistics =
      at::zeros({targets.numel(), kStatistics}, logits.options().dtype(at::kDouble));
  if (logits.size(1) == 0) {
    statistics.select(1, kLargest).fill_(-std::numeric_limits<double>::infinity());
    return statistics;
  }
  read_targets(logits, targets, first_class, statistics);
  const at::Tensor largest = logits.amax({1}, true);
  logits.sub_(largest).exp_();
  statistics.select(1, kLargest).copy_(largest.squeeze(1));
  statistics.select(1, kSum).copy_(logits.sum(1));
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

void cross_entropy_gradient_of_slice_(const at::Tensor& exponentials, const at::Tensor& targets,
                                      std::int64_t first_class, const at::Tensor& slices,
                                      std::int64_t own, double scale) {
  if (exponentials.is_meta()) return;
  check_in_rows(exponentials, "what cross_entropy_gradient_of_slice_() overwrites");
  const SliceStatistics statistics(slices);
  const at::Tensor wanted = in_rows(targets);
  const std::int64_t rows = wanted.numel(), classes = exponentials.size(1);
  const auto* target = wanted.const_data_ptr<std::int64_t>();
  AT_DISPATCH_FLOATING_TYPES(exponentials.scalar_type(), "cross_entropy_gradient_of_slice", [&] {
    auto* data = exponentials.mutable_data_ptr<scalar_t>();
    for (std::int64_t row = 0; row < rows; ++row) {
      scalar_t* gradient = data + row * classes;
      if (target[row] < 0) {
        std::fill_n(gradient, classes, scalar_t(0));
        continue;
      }
      const RowFacts facts = statistics.together(row);
      const double factor = std::exp(statistics.of(own, row, kLargest) - facts.largest) / facts.sum;
      const auto to_probability = static_cast<scalar_t>(factor);
      for (std::int64_t i = 0; i < classes; ++i) gradient[i] *= to_probability;
      const std::int64_t here = target[row] - first_class;
      if (here >= 0 && here < classes) gradient[here] -= scalar_t(1);
    }
  });
  if (scale != 1) exponentials.mul_(scale);
}

}  // namespace troika::ops::cpu
