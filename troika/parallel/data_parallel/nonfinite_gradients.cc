#include <troika/observe/log.h>
#include <troika/parallel/data_parallel/nonfinite_gradients.h>

#include <ATen/ATen.h>

namespace troika::detail {
namespace {

bool is_finite(const at::Tensor& values) {
  return at::isfinite(values).all().item<bool>();
}

}  // namespace

void NonfiniteGradients::check(std::size_t bucket, const at::Tensor& gradients) {
  if (policy_ == Policy::kAverage || found_ || is_finite(gradients)) return;
  for (std::size_t i = 0; i < slots_.size() && !found_; ++i) {
    if (slots_[i].bucket == bucket && !is_finite(slots_[i].view)) found_ = i;
  }
  if (!found_ || policy_ != Policy::kWarn || has_warned_) return;
  has_warned_ = true;
  const Failure said = failure();
  log_warning(said.message + " on rank " + std::to_string(rank_) +
              ", and makes that of every rank so; it is said once");
}

Failure NonfiniteGradients::failure() const {
  return {ExitCode::kNonFinite, "the gradient of " + title_of(slots_[*found_]) + " is not finite",
          "look at that rank's batch and loss, lower the learning rate, or clip gradients"};
}

}  // namespace troika::detail
