// Softmax cross-entropy of class indices, with label smoothing (Szegedy et al. 2015, section 7) and
// weights of classes.
#include <troika/base/error.h>
#include <troika/loss/class_rows.h>
#include <troika/loss/loss.h>
#include <troika/loss/weights.h>
#include <troika/nn/microbatch.h>
#include <troika/ops/cross_entropy.h>

#include <array>

namespace troika {
namespace {

struct CrossEntropyOptions {
  double label_smoothing = 0;
  std::vector<double> class_weights;

  bool operator==(const CrossEntropyOptions&) const = default;
};

// With w the weights, C classes and s the smoothing, the loss of a target y is
//   -(1 - s) w_y log p_y - s / C sum_c w_c log p_c
// and its weight is w_y, so that the mean is PyTorch's. Both are multiplied by the sample's weight.
class CrossEntropy final : public Loss {
 public:
  explicit CrossEntropy(CrossEntropyOptions options) : options_(std::move(options)) {}

 private:
  void check_targets(const at::Tensor& outputs, const LossTargets& targets) const override {
    targets.check_classes(classes_last(outputs, targets.values.sizes()).size(-1));
  }

  [[nodiscard]] LossTerms terms(const at::Tensor& outputs,
                                const LossTargets& targets) const override {
    const ClassRows rows = class_rows(outputs, targets);
    LossTerms loss = terms_of_rows(rows.outputs, rows.targets);
    // A data set counts a sample's targets only where it knows them to be several.
    if (targets.values.dim() > 1 && !loss.weight.defined()) {
      loss.weight = targets.values.ne(kIgnoredTarget).sum().to(at::kDouble);
    }
    return loss;
  }

  [[nodiscard]] LossTerms terms_of_rows(const at::Tensor& outputs,
                                        const LossTargets& targets) const {
    const bool narrow = outputs.element_size() < 4;
    const at::Tensor logits = narrow ? outputs.to(at::kFloat) : outputs;
    const at::Tensor weights = detail::weights_like(options_.class_weights, logits);
    const bool weighs = targets.weights.defined();
    at::Tensor loss = at::cross_entropy_loss(logits, targets.values, weights,
                                             weighs ? at::Reduction::None : at::Reduction::Sum,
                                             kIgnoredTarget, options_.label_smoothing)
                          .to(at::kDouble);
    if (weighs) loss = (loss * targets.weights_for(loss)).sum();
    return {loss, weight_of(targets, weights)};
  }

  [[nodiscard]] LossTerms differentiate_(const at::Tensor& outputs, const LossTargets& targets,
                                         double scale) const override {
    check(outputs.dim() == 2, "a gradient of several targets a sample");
    const bool weighs = targets.weights.defined();
    if (options_ == CrossEntropyOptions() && !weighs) {
      return {ops::cross_entropy_with_gradient_(outputs, targets.values, scale), {}};
    }
    const LossTerms loss = terms_of_rows(outputs, targets);
    const double s = options_.label_smoothing;
    const std::int64_t classes = outputs.size(1);
    at::Tensor weights = detail::weights_like(options_.class_weights, outputs);
    if (!weights.defined()) weights = at::ones({classes}, outputs.options());
    const at::Tensor counts = targets.values.ne(kIgnoredTarget);
    const at::Tensor known = targets.values.masked_fill(counts.logical_not(), 0);
    at::Tensor hard = ((1 - s) * weights).index_select(0, known).mul_(counts).unsqueeze(1);
    at::Tensor soft = (s / static_cast<double>(classes)) * counts.to(outputs.dtype());
    if (weighs) {
      hard = hard * targets.weights_for(hard);
      soft = soft * targets.weights_for(soft);
    }
    // d/dz of the first term is hard (p - onehot), of the second soft (p sum(w) - w).
    at::Tensor gradient = at::softmax(outputs, 1) * (hard + soft.unsqueeze(1) * weights.sum());
    gradient.scatter_add_(1, known.unsqueeze(1), -hard);
    gradient.sub_(at::outer(soft, weights));
    outputs.copy_(gradient.mul_(scale));
    return loss;
  }

  // Undefined where each target that counts weighs 1.
  static at::Tensor weight_of(const LossTargets& targets, const at::Tensor& weights) {
    if (!weights.defined() && !targets.weights.defined()) return {};
    const at::Tensor counts = targets.values.ne(kIgnoredTarget);
    at::Tensor weight = counts.to(at::kDouble);
    if (weights.defined()) {
      const at::Tensor known = targets.values.masked_fill(counts.logical_not(), 0).reshape({-1});
      weight = weights.to(at::kDouble).index_select(0, known).view_as(counts).mul(counts);
    }
    if (targets.weights.defined()) weight = weight * targets.weights_for(weight);
    return weight.sum();
  }

  CrossEntropyOptions options_;
};

// clang-format off
std::vector<Key> cross_entropy_keys() {
  using O = CrossEntropyOptions;
  using K = KeysOf<O>;
  return {
      K::number<&O::label_smoothing>("label_smoothing", ranges::kBelowOne, "share of a target that is spread over all classes"),
      K::numbers<&O::class_weights>("class_weights", ranges::kAboveZero, "what a target of each class weighs; []: 1 each"),
  };
}
// clang-format on

class CrossEntropyKind final : public Declared<LossKind, CrossEntropyOptions> {
 public:
  CrossEntropyKind() : Declared("cross_entropy", cross_entropy_keys()) {}

  [[nodiscard]] TargetMeaning target_meaning() const override { return TargetMeaning::kClass; }
  [[nodiscard]] TensorSpec targets(std::int64_t outputs, std::string_view key) const override {
    TensorSpec spec{"targets", at::kLong, {}, outputs, key};
    spec.role = TensorRole::kTarget;
    return spec;
  }
  void check_outputs(const Options& options, std::int64_t outputs,
                     const Origins& origins) const override {
    detail::check_weights("class_weights", options.as<CrossEntropyOptions>().class_weights, outputs,
                          origins);
  }
  [[nodiscard]] std::shared_ptr<const Loss> make(const Options& options) const override {
    return std::make_shared<CrossEntropy>(options.as<CrossEntropyOptions>());
  }
};

}  // namespace

const LossKind& cross_entropy_kind() {
  static const CrossEntropyKind kKind;
  return kKind;
}

}  // namespace troika
