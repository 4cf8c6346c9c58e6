#include <ATen/ATen.h>
#include <troika/nn/loss_terms.h>

namespace troika {
namespace {

void add_number(at::Tensor& total, const at::Tensor& part) {
  if (!part.defined()) return;
  total = total.defined() ? total + part : part;
}

// A dry run has shapes alone.
double read(const at::Tensor& number) {
  return number.defined() && !number.is_meta() ? number.item<double>() : 0;
}

}  // namespace

LossTerms LossTerms::of(double sum, double weight) {
  return {at::scalar_tensor(sum, at::kDouble), at::scalar_tensor(weight, at::kDouble)};
}

void LossTerms::weigh_equally(std::int64_t targets) {
  if (!weight.defined()) weight = at::scalar_tensor(static_cast<double>(targets), at::kDouble);
}

void LossTerms::add(const LossTerms& part) {
  add_number(sum, part.sum);
  add_number(weight, part.weight);
}

double LossTerms::read_sum() const {
  return read(sum);
}

double LossTerms::read_weight() const {
  return read(weight);
}

}  // namespace troika
