// The losses that [model] loss can name. Each is a file that declares its keys and its formula, and
// a line in kinds.cc.
#pragma once

#include <troika/config/component.h>
#include <troika/loss/loss_targets.h>
#include <troika/nn/loss_terms.h>
#include <troika/nn/sample_spec.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace troika {

// A loss with its options. Const access is thread safe.
class Loss {
 public:
  virtual ~Loss() = default;
  // Returns the loss of `outputs` [samples, n] of any floating type, which a model gives for some
  // samples, and of their targets. Classes may be several a sample: see class_rows(). Autograd can
  // differentiate the sum. A weight that is left undefined is the number of targets that count.
  // Throws DataError naming a sample whose target cannot be.
  [[nodiscard]] LossTerms of(const at::Tensor& outputs, const LossTargets& targets) const;
  // Gives the same, and overwrites `outputs`, fp32 or fp64, with the gradient of `scale` times the
  // sum.
  [[nodiscard]] LossTerms with_gradient_(const at::Tensor& outputs, const LossTargets& targets,
                                         double scale) const;

 private:
  virtual void check_targets(const at::Tensor& outputs, const LossTargets& targets) const = 0;
  // Do the same with targets that have been checked.
  [[nodiscard]] virtual LossTerms terms(const at::Tensor& outputs,
                                        const LossTargets& targets) const = 0;
  [[nodiscard]] virtual LossTerms differentiate_(const at::Tensor& outputs,
                                                 const LossTargets& targets,
                                                 double scale) const = 0;
};

// The meaning of the targets of a loss, for the metrics that judge the same outputs.
enum class TargetMeaning {
  kClass,    // the number of the one class; outputs are logits of the classes
  kAnswers,  // 0 or 1 an output, whose logit says how likely 1 is
  kValues,   // a value an output
};

class LossKind : public Component {
 public:
  // Returns every kind that there is.
  [[nodiscard]] static std::span<const LossKind* const> all();
  [[nodiscard]] static const LossKind& default_kind();

  // Describes the targets of a sample for which a model gives `outputs` numbers; `key` is the key
  // of [model] that sets how many.
  [[nodiscard]] virtual TensorSpec targets(std::int64_t outputs, std::string_view key) const = 0;
  [[nodiscard]] virtual TargetMeaning target_meaning() const = 0;
  // Returns whether it stands for a loss that the model returns.
  [[nodiscard]] virtual bool is_of_model() const { return false; }
  // Returns whether it compares the first output with the target; make() has a loss only then.
  [[nodiscard]] virtual bool takes_outputs() const { return true; }
  // Throws UsageError where the options do not go with so many outputs.
  virtual void check_outputs(const Options& options, std::int64_t outputs,
                             const Origins& origins) const;
  [[nodiscard]] virtual std::shared_ptr<const Loss> make(const Options& options) const = 0;
};

// The section [loss] of a recipe.
using LossOptions = Chosen<LossKind>;

[[nodiscard]] const LossKind& cross_entropy_kind();
[[nodiscard]] const LossKind& binary_cross_entropy_kind();
[[nodiscard]] const LossKind& mean_square_kind();
[[nodiscard]] const LossKind& expression_kind();
[[nodiscard]] const LossKind& none_kind();

}  // namespace troika
