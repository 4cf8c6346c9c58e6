// Mean square error of values.
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
 public:
  [[nodiscard]] LossTerms of(const at::Tensor& outputs, const at::Tensor& targets) const override {
    const at::Tensor values = outputs.element_size() < 4 ? outputs.to(at::kFloat) : outputs;
    const at::Tensor there = targets.eq(targets);
    return terms(at::where(there, values - targets, 0), there);
  }

  [[nodiscard]] LossTerms with_gradient_(const at::Tensor& outputs, const at::Tensor& targets,
                                         double scale) const override {
    const at::Tensor there = targets.eq(targets);
    outputs.sub_(targets).masked_fill_(there.logical_not(), 0);
    LossTerms loss = terms(outputs, there);
    outputs.mul_(2 * scale / static_cast<double>(outputs.size(1)));
    return loss;
  }

 private:
  static LossTerms terms(const at::Tensor& errors, const at::Tensor& there) {
    const auto size = static_cast<double>(errors.size(1));
    return {errors.square().sum(at::kDouble) / size, there.sum().to(at::kDouble) / size};
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
