#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/loss/loss_targets.h>
#include <troika/nn/microbatch.h>
#include <troika/nn/sample_spec.h>
#include <troika/param/shape_text.h>

#include <cmath>
#include <sstream>
#include <string>

namespace troika {
namespace {

// The place of the first element that `is_bad`; -1 where there is none, or no host memory to read.
template <class T, class IsBad>
std::int64_t first_bad(const at::Tensor& tensor, const IsBad& is_bad) {
  if (!tensor.defined() || !tensor.is_cpu()) return -1;
  const at::Tensor dense = tensor.contiguous();
  const T* const values = dense.const_data_ptr<T>();
  for (std::int64_t i = 0; i < dense.numel(); ++i) {
    if (is_bad(values[i])) return i;
  }
  return -1;
}

template <class IsBad>
std::int64_t first_bad_number(const at::Tensor& tensor, const IsBad& is_bad) {
  if (!tensor.defined()) return -1;
  if (tensor.scalar_type() == at::kFloat) return first_bad<float>(tensor, is_bad);
  if (tensor.scalar_type() == at::kDouble) return first_bad<double>(tensor, is_bad);
  return -1;
}

// "sample 17", or its place in the microbatch where its number is not known.
std::string name_of_sample(const LossTargets& targets, std::int64_t row) {
  const at::Tensor& ids = targets.sample_ids;
  const bool knows = ids.defined() && ids.is_cpu() && row < ids.numel();
  if (knows) {
    const auto id = ids[row].item<std::int64_t>();
    return "sample " + std::to_string(id & ((std::int64_t{1} << kSampleIndexBits) - 1));
  }
  return "sample " + std::to_string(row) + " of a microbatch";
}

[[noreturn]] void fail(const LossTargets& targets, const at::Tensor& among, std::int64_t place,
                       const std::string& what, const std::string& expected,
                       const std::string& hint) {
  const std::int64_t row = place / std::max<std::int64_t>(1, among.numel() / among.size(0));
  std::ostringstream value;
  value << among.reshape({-1})[place].item();
  throw DataError("the " + what + " of " + name_of_sample(targets, row) + " is " + value.str() +
                      "; " + expected,
                  hint);
}

}  // namespace

LossTargets LossTargets::of(const Microbatch& microbatch, std::string_view name) {
  const at::Tensor* const weights = microbatch.tensors.find(kSampleWeights);
  return {microbatch.tensors.at(name), weights != nullptr ? *weights : at::Tensor(),
          microbatch.sample_ids};
}

at::Tensor LossTargets::weights_for(const at::Tensor& like) const {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape.front() = like.size(0);
  return weights.reshape(shape).to(like.scalar_type());
}

void LossTargets::check_fits(const at::Tensor& outputs) const {
  if (outputs.sizes() == values.sizes()) return;
  throw UsageError("outputs " + shape_text(outputs.sizes()) + " do not go with targets " +
                       shape_text(values.sizes()),
                   "the first output of the model has the shape of its target");
}

at::Tensor as_rows(const at::Tensor& tensor) {
  if (tensor.dim() == 2) return tensor;
  return tensor.reshape({tensor.size(0), c10::multiply_integers(tensor.sizes().slice(1))});
}

void LossTargets::check_classes(std::int64_t classes) const {
  if (values.scalar_type() != at::kLong) return;
  const std::int64_t place = first_bad<std::int64_t>(values, [classes](std::int64_t target) {
    return target != kIgnoredTarget && (target < 0 || target >= classes);
  });
  if (place < 0) return;
  fail(*this, values, place, "target", "the model has classes 0 to " + std::to_string(classes - 1),
       std::to_string(kIgnoredTarget) + " stands for a target that does not count");
}

void LossTargets::check_answers() const {
  const auto is_bad = [](auto target) { return target < 0 || target > 1; };
  const std::int64_t place = first_bad_number(values, is_bad);
  if (place < 0) return;
  fail(*this, values, place, "target", "an answer is between 0 and 1",
       "loss = \"mean_square\" takes any number");
}

void LossTargets::check_values() const {
  const std::int64_t place =
      first_bad_number(values, [](auto target) { return std::isinf(target); });
  if (place < 0) return;
  fail(*this, values, place, "target", "expected a number", "NaN stands for a missing target");
}

void LossTargets::check_weights() const {
  const auto is_bad = [](auto weight) { return !(weight >= 0) || std::isinf(weight); };
  const std::int64_t place = first_bad_number(weights, is_bad);
  if (place < 0) return;
  fail(*this, weights, place, "weight", "a sample weighs 0 or more", "");
}

}  // namespace troika
