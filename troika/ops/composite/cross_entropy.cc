// The cross-entropy of whole and of sliced logits in ATen's operators.
#include <ATen/ATen.h>
#include <troika/ops/kernels.h>
#include <troika/ops/rows.h>

#include <limits>

namespace troika::ops::composite {
namespace {

constexpr std::int64_t kStatistics = 3;
enum Statistic : std::int64_t { kLargest, kSum, kTarget };

at::Tensor counted(const at::Tensor& targets) {
  return targets.ge(0);
}

at::Tensor negative_log_likelihood(const at::Tensor& log_probability, const at::Tensor& targets) {
  const at::Tensor own = log_probability.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  return own.to(at::kDouble).masked_fill(counted(targets).logical_not(), 0).sum().neg();
}

// Targets counted from the slice's first class, and which of them lie in it.
struct TargetsHere {
  at::Tensor index, here;  // int64 and bool [rows]

  TargetsHere(const at::Tensor& logits, const at::Tensor& targets, std::int64_t first_class)
      : index(targets - first_class) {
    here = counted(targets).logical_and(index.ge(0)).logical_and(index.lt(logits.size(1)));
    index = index.masked_fill(here.logical_not(), 0);
  }
};

// What all slices together say of the rows, fp64 [rows].
struct RowFacts {
  at::Tensor largest, sum, target;

  explicit RowFacts(const at::Tensor& slices) {
    const at::Tensor of_slice = slices.select(2, kLargest);
    largest = of_slice.amax({0});
    sum = (slices.select(2, kSum) * (of_slice - largest).exp()).sum(0);
    target = slices.select(2, kTarget).sum(0);
  }
};

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  if (is_of_few_bits(logits)) return cross_entropy(logits.to(at::kFloat), targets);
  return negative_log_likelihood(at::log_softmax(logits, 1), targets);
}

at::Tensor cross_entropy_with_gradient_(const at::Tensor& logits, const at::Tensor& targets,
                                        double scale) {
  if (is_of_few_bits(logits)) {
    const at::Tensor wide = logits.to(at::kFloat);
    const at::Tensor sum = cross_entropy_with_gradient_(wide, targets, scale);
    logits.copy_(wide);
    return sum;
  }
  const at::Tensor log_probability = at::log_softmax(logits, 1);
  const at::Tensor sum = negative_log_likelihood(log_probability, targets);
  const at::Tensor rows = targets.clamp_min(0).unsqueeze(1);
  logits.copy_(log_probability.exp_());
  logits.scatter_add_(1, rows, at::full_like(rows, -1, logits.options()));
  logits.masked_fill_(counted(targets).logical_not().unsqueeze(1), 0);
  if (scale != 1) logits.mul_(scale);
  return sum;
}

at::Tensor cross_entropy_slice(const at::Tensor& logits, const at::Tensor& targets,
                               std::int64_t first_class) {
  const at::Tensor statistics =
      at::zeros({targets.numel(), kStatistics}, logits.options().dtype(at::kDouble));
  if (logits.size(1) == 0) {
    statistics.select(1, kLargest).fill_(-std::numeric_limits<double>::infinity());
    return statistics;
  }
  if (is_of_few_bits(logits)) {
    return cross_entropy_slice(logits.to(at::kFloat), targets, first_class);
  }
  const TargetsHere wanted(logits, targets, first_class);
  const at::Tensor own = logits.gather(1, wanted.index.unsqueeze(1)).squeeze(1);
  statistics.select(1, kTarget).copy_(own.masked_fill(wanted.here.logical_not(), 0));
  const at::Tensor largest = logits.amax({1}, true);
  // While all are -inf, as those of classes that a model rules out may be, the sum is zero.
  const at::Tensor shift = largest.masked_fill(largest.isneginf(), 0);
  statistics.select(1, kLargest).copy_(largest.squeeze(1));
  statistics.select(1, kSum).copy_((logits - shift).exp_().sum(1));
  return statistics;
}

at::Tensor cross_entropy_of_slices(const at::Tensor& slices, const at::Tensor& targets) {
  const RowFacts facts(slices);
  const at::Tensor losses = facts.sum.log() + (facts.largest - facts.target);
  return losses.masked_fill(counted(targets).logical_not(), 0).sum();
}

void cross_entropy_gradient_of_slice_(const at::Tensor& logits, const at::Tensor& targets,
                                      std::int64_t first_class, const at::Tensor& slices,
                                      double scale) {
  if (logits.size(1) == 0) return;
  if (is_of_few_bits(logits)) {
    const at::Tensor wide = logits.to(at::kFloat);
    cross_entropy_gradient_of_slice_(wide, targets, first_class, slices, scale);
    logits.copy_(wide);
    return;
  }
  const RowFacts facts(slices);
  const auto column = [&](const at::Tensor& of_rows) {
    return of_rows.to(logits.scalar_type()).unsqueeze(1);
  };
  logits.sub_(column(facts.largest)).exp_().div_(column(facts.sum));
  const TargetsHere wanted(logits, targets, first_class);
  logits.scatter_add_(1, wanted.index.unsqueeze(1), column(wanted.here).neg());
  logits.masked_fill_(counted(targets).logical_not().unsqueeze(1), 0);
  if (scale != 1) logits.mul_(scale);
}

}  // namespace troika::ops::composite
