#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/loss/class_rows.h>
#include <troika/param/shape_text.h>

namespace troika {

at::Tensor classes_last(const at::Tensor& outputs, at::IntArrayRef targets) {
  const std::int64_t dims = outputs.dim();
  const bool has_classes = dims == static_cast<std::int64_t>(targets.size()) + 1;
  if (has_classes && outputs.sizes().slice(0, targets.size()) == targets) return outputs;
  if (has_classes && outputs.size(0) == targets[0] &&
      outputs.sizes().slice(2) == targets.slice(1)) {
    return outputs.movedim(1, dims - 1);
  }
  throw UsageError(
      "logits " + shape_text(outputs.sizes()) + " do not go with targets " + shape_text(targets),
      "each target has a row of logits: their last dimension, or the second");
}

ClassRows class_rows(const at::Tensor& outputs, const LossTargets& targets) {
  if (targets.values.dim() == 1 && outputs.dim() == 2) return {outputs, targets};
  const at::Tensor last = classes_last(outputs, targets.values.sizes());
  const std::int64_t each = targets.values.numel() / std::max<std::int64_t>(1, last.size(0));
  const auto repeated = [each](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.repeat_interleave(each) : tensor;
  };
  return {last.reshape({-1, last.size(-1)}),
          {targets.values.reshape({-1}), repeated(targets.weights), repeated(targets.sample_ids)}};
}

}  // namespace troika
