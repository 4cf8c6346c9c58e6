// Softmax over classes that lie on several ranks, by the usual trick for a softmax in one pass:
// sums of exponentials relative to a part's own largest logit are scaled to the largest of all
// (Milakov and Gimelshein 2018).
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <troika/ops/cross_entropy.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace troika::ops {
namespace {

constexpr std::int64_t kNumbers = 3;
enum Number : std::int64_t { kLargest, kSum, kTarget };

// What all parts together say of a row.
struct RowFacts {
  double largest, sum, target;
};

class PartNumbers {
 public:
  explicit PartNumbers(const at::Tensor& parts)
      : data_(parts.const_data_ptr<double>()), parts_(parts.size(0)), rows_(parts.size(1)) {}

  [[nodiscard]] double of(std::int64_t part, std::int64_t row, Number number) const {
    return data_[(part * rows_ + row) * kNumbers + number];
  }
  [[nodiscard]] RowFacts together(std::int64_t row) const {
    RowFacts facts{-std::numeric_limits<double>::infinity(), 0, 0};
    for (std::int64_t part = 0; part < parts_; ++part) {
      const double largest = of(part, row, kLargest);
      // A NaN goes through, as it does in a softmax.
      if (largest > facts.largest || std::isnan(largest)) facts.largest = largest;
    }
    for (std::int64_t part = 0; part < parts_; ++part) {
      facts.sum += of(part, row, kSum) * std::exp(of(part, row, kLargest) - facts.largest);
      facts.target += of(part, row, kTarget);
    }
    return facts;
  }

 private:
  const double* data_;
  std::int64_t parts_, rows_;
};

// Logits of the targets that lie in this part.
void read_targets(const at::Tensor& logits, const at::Tensor& targets, std::int64_t first_class,
                  const at::Tensor& numbers) {
  if (logits.is_meta()) return;  // a dry run: shapes alone
  const std::int64_t rows = targets.numel(), classes = logits.size(1);
  const auto* target = targets.const_data_ptr<std::int64_t>();
  auto* out = numbers.mutable_data_ptr<double>();
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "read_targets", [&] {
    const auto* data = logits.const_data_ptr<scalar_t>();
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t here = target[row] - first_class;
      if (target[row] < 0 || here < 0 || here >= classes) continue;
      out[row * kNumbers + kTarget] = static_cast<double>(data[row * classes + here]);
    }
  });
}

}  // namespace

at::Tensor cross_entropy_part_(const at::Tensor& logits, const at::Tensor& targets,
                               std::int64_t first_class) {
  const at::Tensor numbers =
      at::zeros({targets.numel(), kNumbers}, logits.options().dtype(at::kDouble));
  if (logits.size(1) == 0) {
    numbers.select(1, kLargest).fill_(-std::numeric_limits<double>::infinity());
    return numbers;
  }
  read_targets(logits, targets, first_class, numbers);
  const at::Tensor largest = logits.amax({1}, true);
  logits.sub_(largest).exp_();
  numbers.select(1, kLargest).copy_(largest.squeeze(1));
  numbers.select(1, kSum).copy_(logits.sum(1));
  return numbers;
}

double cross_entropy_of_parts(const at::Tensor& parts, const at::Tensor& targets) {
  if (parts.is_meta()) return 0;
  const PartNumbers numbers(parts);
  const auto* target = targets.const_data_ptr<std::int64_t>();
  double sum = 0;
  for (std::int64_t row = 0; row < targets.numel(); ++row) {
    if (target[row] < 0) continue;
    const RowFacts facts = numbers.together(row);
    sum += std::log(facts.sum) + (facts.largest - facts.target);
  }
  return sum;
}

void cross_entropy_gradient_of_part_(const at::Tensor& exponentials, const at::Tensor& targets,
                                     std::int64_t first_class, const at::Tensor& parts,
                                     std::int64_t own, double scale) {
  if (exponentials.is_meta()) return;
  const PartNumbers numbers(parts);
  const std::int64_t rows = targets.numel(), classes = exponentials.size(1);
  const auto* target = targets.const_data_ptr<std::int64_t>();
  AT_DISPATCH_FLOATING_TYPES(exponentials.scalar_type(), "cross_entropy_gradient_of_part", [&] {
    auto* data = exponentials.mutable_data_ptr<scalar_t>();
    for (std::int64_t row = 0; row < rows; ++row) {
      scalar_t* gradient = data + row * classes;
      if (target[row] < 0) {
        std::fill_n(gradient, classes, scalar_t(0));
        continue;
      }
      const RowFacts facts = numbers.together(row);
      const double factor = std::exp(numbers.of(own, row, kLargest) - facts.largest) / facts.sum;
      const auto to_probability = static_cast<scalar_t>(factor);
      for (std::int64_t i = 0; i < classes; ++i) gradient[i] *= to_probability;
      const std::int64_t here = target[row] - first_class;
      if (here >= 0 && here < classes) gradient[here] -= scalar_t(1);
    }
  });
  if (scale != 1) exponentials.mul_(scale);
}

}  // namespace troika::ops
