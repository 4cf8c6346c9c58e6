// The losses that there are: a new one is a line here, and its file.
#include <troika/loss/expression.h>
#include <troika/loss/loss.h>

#include <array>

namespace troika {

std::span<const LossKind* const> LossKind::all() {
  static const std::array kAll = {&cross_entropy_kind(), &binary_cross_entropy_kind(),
                                  &mean_square_kind(), &expression_kind(), &none_kind()};
  return kAll;
}

const LossKind& LossKind::default_kind() {
  return cross_entropy_kind();
}

LossTerms Loss::of(const at::Tensor& outputs, const LossTargets& targets) const {
  targets.check_weights();
  check_targets(outputs, targets);
  return terms(outputs, targets);
}

LossTerms Loss::with_gradient_(const at::Tensor& outputs, const LossTargets& targets,
                               double scale) const {
  targets.check_weights();
  check_targets(outputs, targets);
  return differentiate_(outputs, targets, scale);
}

void LossKind::check_outputs(const Options&, std::int64_t, const Origins&) const {}

}  // namespace troika
