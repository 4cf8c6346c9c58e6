// Perplexity: exp of the mean of -log p(target), without what the loss adds to that.
#include <ATen/ATen.h>
#include <troika/loss/metric.h>
#include <troika/nn/microbatch.h>

#include <cmath>

namespace troika {
namespace {

// Adds up {-log p, targets that count}.
class Perplexity final : public Metric {
 public:
  void add(const at::Tensor& outputs, const at::Tensor& targets) override {
    const at::Tensor sum = at::cross_entropy_loss(outputs.to(at::kDouble), targets, {},
                                                  at::Reduction::Sum, kIgnoredTarget);
    const at::Tensor count = targets.ne(kIgnoredTarget).sum().to(at::kDouble);
    sums_.add_(at::stack({sum, count}).to(at::kCPU));
  }
  [[nodiscard]] at::Tensor sums() const override { return sums_; }
  [[nodiscard]] std::optional<double> value(const at::Tensor& sums, const at::Tensor&,
                                            double) const override {
    const auto count = sums[1].item<double>();
    if (count == 0) return std::nullopt;
    return std::exp(sums[0].item<double>() / count);
  }

 private:
  at::Tensor sums_ = at::zeros({2}, at::kDouble);
};

// Of a model whose outputs are not kept: its loss is the plain cross-entropy.
class PerplexityOfLoss final : public Metric {
 public:
  void add(const at::Tensor&, const at::Tensor&) override {}
  [[nodiscard]] std::optional<double> value(const at::Tensor&, const at::Tensor&,
                                            double mean_loss) const override {
    return std::exp(mean_loss);
  }
};

class PerplexityKind final : public MetricKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "perplexity"; }
  [[nodiscard]] Better better() const override { return Better::kLower; }
  [[nodiscard]] bool needs_outputs(const MetricSubject& subject) const override {
    return subject.gives_outputs;
  }
  [[nodiscard]] std::string refusal(std::string_view, const MetricSubject& subject) const override {
    if (subject.loss->target_meaning() == TargetMeaning::kClass) return "";
    return "measures classes, and the loss is " + std::string(subject.loss->name());
  }
  [[nodiscard]] std::unique_ptr<Metric> make(std::string_view,
                                             const MetricSubject& subject) const override {
    if (!subject.gives_outputs) return std::make_unique<PerplexityOfLoss>();
    return std::make_unique<Perplexity>();
  }
};

}  // namespace

const MetricKind& perplexity_metric() {
  static const PerplexityKind kKind;
  return kKind;
}

}  // namespace troika
