// Binary cross-entropy of logits: each output answers a question of its own with yes (1) or no (0).
#include <troika/base/error.h>
#include <troika/loss/loss.h>
#include <troika/loss/weights.h>

namespace troika {
namespace {

struct BinaryCrossEntropyOptions {
  std::vector<double> positive_weights;

  bool operator==(const BinaryCrossEntropyOptions&) const = default;
};

// A sample's loss is the mean over its outputs of
//   -w y log s(z) - (1 - y) log(1 - s(z)),  s the logistic function.
// Targets that are not a number are missing: they count neither in the sum nor in the weight.
class BinaryCrossEntropy final : public Loss {
 public:
  explicit BinaryCrossEntropy(BinaryCrossEntropyOptions options) : options_(std::move(options)) {}

 private:
  void check_targets(const at::Tensor& outputs, const LossTargets& targets) const override {
    targets.check_fits(outputs);
    targets.check_answers();
  }

  [[nodiscard]] LossTerms terms(const at::Tensor& outputs,
                                const LossTargets& targets) const override {
    const at::Tensor rows = as_rows(outputs), expected = as_rows(targets.values);
    const at::Tensor logits = rows.element_size() < 4 ? rows.to(at::kFloat) : rows;
    const at::Tensor there = expected.eq(expected), missing = there.logical_not();
    const at::Tensor known = expected.masked_fill(missing, 0).to(logits.dtype());
    const at::Tensor weights = detail::weights_like(options_.positive_weights, logits);
    const at::Tensor all =
        at::binary_cross_entropy_with_logits(logits, known, {}, weights, at::Reduction::None);
    const auto size = static_cast<double>(rows.size(1));
    at::Tensor each = all.masked_fill(missing, 0);
    if (!targets.weights.defined()) {
      return {each.sum(at::kDouble) / size, there.sum().to(at::kDouble) / size};
    }
    each = each.to(at::kDouble);
    return {(each * targets.weights_for(each)).sum() / size,
            (there * targets.weights_for(each)).sum() / size};
  }

  [[nodiscard]] LossTerms differentiate_(const at::Tensor& outputs, const LossTargets& targets,
                                         double scale) const override {
    check(outputs.dim() == 2, "a gradient of several dimensions a sample");
    LossTerms loss = terms(outputs, targets);
    const at::Tensor there = targets.values.eq(targets.values);
    const at::Tensor yes = targets.values.masked_fill(there.logical_not(), 0).to(outputs.dtype());
    const at::Tensor s = at::sigmoid(outputs);
    at::Tensor pull = yes * (1 - s);
    if (!options_.positive_weights.empty()) {
      pull.mul_(detail::weights_like(options_.positive_weights, outputs));
    }
    at::Tensor gradient = ((1 - yes) * s - pull).masked_fill_(there.logical_not(), 0);
    if (targets.weights.defined()) gradient = gradient * targets.weights_for(gradient);
    outputs.copy_(gradient.mul_(scale / static_cast<double>(outputs.size(1))));
    return loss;
  }

  BinaryCrossEntropyOptions options_;
};

// clang-format off
std::vector<Key> binary_cross_entropy_keys() {
  using O = BinaryCrossEntropyOptions;
  return {KeysOf<O>::numbers<&O::positive_weights>("positive_weights", ranges::kAboveZero, "what a yes of each output weighs; []: 1 each")};
}
// clang-format on

class BinaryCrossEntropyKind final : public Declared<LossKind, BinaryCrossEntropyOptions> {
 public:
  BinaryCrossEntropyKind() : Declared("binary_cross_entropy", binary_cross_entropy_keys()) {}

  [[nodiscard]] TargetMeaning target_meaning() const override { return TargetMeaning::kAnswers; }
  [[nodiscard]] TensorSpec targets(std::int64_t outputs, std::string_view key) const override {
    TensorSpec spec{"targets", at::kFloat, {outputs}, 2, key};
    spec.role = TensorRole::kTarget;
    return spec;
  }
  void check_outputs(const Options& options, std::int64_t outputs,
                     const Origins& origins) const override {
    detail::check_weights("positive_weights",
                          options.as<BinaryCrossEntropyOptions>().positive_weights, outputs,
                          origins);
  }
  [[nodiscard]] std::shared_ptr<const Loss> make(const Options& options) const override {
    return std::make_shared<BinaryCrossEntropy>(options.as<BinaryCrossEntropyOptions>());
  }
};

}  // namespace

const LossKind& binary_cross_entropy_kind() {
  static const BinaryCrossEntropyKind kKind;
  return kKind;
}

}  // namespace troika
