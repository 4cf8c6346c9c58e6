#include <troika/base/error.h>
#include <troika/nn/sample_spec.h>

#include <algorithm>

namespace troika {
namespace {

const TensorSpec& first_of(const std::vector<TensorSpec>& tensors, TensorRole role) {
  const auto found = std::ranges::find(tensors, role, &TensorSpec::role);
  check(found != tensors.end(), "a sample without an input or a target");
  return *found;
}

}  // namespace

const TensorSpec& SampleSpec::input() const {
  return first_of(tensors, TensorRole::kInput);
}

const TensorSpec& SampleSpec::target() const {
  return first_of(tensors, TensorRole::kTarget);
}

bool SampleSpec::is_language() const {
  const TensorSpec &tokens = input(), &next = target();
  return tokens.dtype == at::kLong && tokens.shape.size() == 1 && next.dtype == at::kLong &&
         next.shape == tokens.shape && next.range == tokens.range;
}

void SampleSpec::count_tokens() {
  if (!is_language() || targets_per_sample != 1) return;
  targets_per_sample = input().shape.front();
  unit = "tokens";
}

void SampleSpec::allow_weights() {
  if (std::ranges::count(tensors, kSampleWeights, &TensorSpec::name) > 0) return;
  TensorSpec weights{std::string(kSampleWeights), at::kDouble, {}};
  weights.role = TensorRole::kTarget;
  weights.optional = true;
  tensors.push_back(std::move(weights));
}

}  // namespace troika
