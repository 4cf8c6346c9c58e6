// Mean square error of values.
#include <troika/base/error.h>
#include <troika/loss/loss.h>

#include <ATen/ATen.h>

namespace troika {
namespace {

struct MeanSquareOptions {
  bool operator==(const MeanSquareOptions&) const = default;
};

// A sample's loss is the mean over its outputs of the squared error. Targets that are not a number
// are missing: they count neither in the sum nor in the weight.
class MeanSquare final : public Loss {
  void check_targets(const at::Tensor& outputs, const LossTargets& targets) const override {
    targets.check_fits(outputs);
    targets.check_values();
  }

  [[nodiscard]] LossTerms terms(const at::Tensor& outputs,
                                const LossTargets& targets) const override {
    const at::Tensor rows = as_rows(outputs), expected = as_rows(targets.values);
    const at::Tensor values = rows.element_size() < 4 ? rows.to(at::kFloat) : rows;
    const at::Tensor there = expected.eq(expected);
    return sums((values - expected).masked_fill(there.logical_not(), 0), there, targets);
  }

  [[nodiscard]] LossTerms differentiate_(const at::Tensor& outputs, const LossTargets& targets,
                                         double scale) const override {
    check(outputs.dim() == 2, "a gradient of several dimensions a sample");
    const at::Tensor there = targets.values.eq(targets.values);
    outputs.sub_(targets.values).masked_fill_(there.logical_not(), 0);
    LossTerms loss = sums(outputs, there, targets);
    outputs.mul_(2 * scale / static_cast<double>(outputs.size(1)));
    if (targets.weights.defined()) outputs.mul_(targets.weights_for(outputs));
    return loss;
  }

  static LossTerms sums(const at::Tensor& errors, const at::Tensor& there,
                        const LossTargets& targets) {
    const auto size = static_cast<double>(errors.size(1));
    at::Tensor squares = errors.square();
    if (!targets.weights.defined()) {
      return {squares.sum(at::kDouble) / size, there.sum().to(at::kDouble) / size};
    }
    squares = squares.to(at::kDouble);
    return {(squares * targets.weights_for(squares)).sum() / size,
            (there * targets.weights_for(squares)).sum() / size};
  }
};

class MeanSquareKind final : public Declared<LossKind, MeanSquareOptions> {
 public:
  MeanSquareKind() : Declared("mean_square", {}) {}

  [[nodiscard]] TargetMeaning target_meaning() const override { return TargetMeaning::kValues; }
  [[nodiscard]] TensorSpec targets(std::int64_t outputs, std::string_view) const override {
    TensorSpec spec{"targets", at::kFloat, {outputs}};
    spec.role = TensorRole::kTarget;
    return spec;
  }
  [[nodiscard]] std::shared_ptr<const Loss> make(const Options&) const override {
    return std::make_shared<MeanSquare>();
  }
};

}  // namespace

const LossKind& mean_square_kind() {
  static const MeanSquareKind kKind;
  return kKind;
}

}  // namespace troika
