// The cross-entropy on the host.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <troika/ops/kernels.h>
#include <troika/ops/rows.h>

namespace troika::ops::cpu {
namespace {

// Adds up -log_probability[target] in row order, in fp64.
at::Tensor negative_log_likelihood(const at::Tensor& log_probability, const at::Tensor& targets) {
  if (log_probability.is_meta()) return number_like(log_probability);  // a dry run: shapes alone
  const at::Tensor values = in_rows(log_probability), wanted = in_rows(targets);
  const std::int64_t rows = wanted.numel(), classes = values.size(1);
  const auto* target = wanted.const_data_ptr<std::int64_t>();
  double sum = 0;
  AT_DISPATCH_FLOATING_TYPES(values.scalar_type(), "negative_log_likelihood", [&] {
    const auto* data = values.const_data_ptr<scalar_t>();
    for (std::int64_t row = 0; row < rows; ++row) {
      if (target[row] >= 0) sum -= static_cast<double>(data[row * classes + target[row]]);
    }
  });
  return at::scalar_tensor(sum, at::kDouble);
}

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  if (is_of_few_bits(logits)) return cross_entropy(logits.to(at::kFloat), targets);
  return negative_log_likelihood(at::_log_softmax(logits, 1, false), targets);
}

at::Tensor cross_entropy_with_gradient_(const at::Tensor& logits, const at::Tensor& targets,
                                        double scale) {
  if (is_of_few_bits(logits)) {
    const at::Tensor wide = logits.to(at::kFloat);
    const at::Tensor sum = cross_entropy_with_gradient_(wide, targets, scale);
    logits.copy_(wide);
    return sum;
  }
  check_in_rows(logits, "what cross_entropy_with_gradient_() overwrites");
  at::_log_softmax_out(const_cast<at::Tensor&>(logits), logits, 1, false);
  const at::Tensor sum = negative_log_likelihood(logits, targets);
  logits.exp_();
  if (logits.is_meta()) return sum;
  const at::Tensor wanted = in_rows(targets);
  const std::int64_t rows = wanted.numel(), classes = logits.size(1);
  const auto* target = wanted.const_data_ptr<std::int64_t>();
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "cross_entropy_gradient", [&] {
    auto* data = logits.mutable_data_ptr<scalar_t>();
    for (std::int64_t row = 0; row < rows; ++row) {
      if (target[row] >= 0) {
        data[row * classes + target[row]] -= scalar_t(1);
      } else {
        std::fill_n(data + row * classes, classes, scalar_t(0));
      }
    }
  });
  if (scale != 1) logits.mul_(scale);
  return sum;
}

}  // namespace troika::ops::cpu
