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

}  // namespace troika
