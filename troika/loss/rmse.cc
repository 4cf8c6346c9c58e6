// The root of the mean square error over all values.
#include <ATen/ATen.h>
#include <troika/loss/metric.h>

#include <cmath>

namespace troika {
namespace {

// Adds up {squared errors, values}.
class Rmse final : public Metric {
 public:
  void add(const at::Tensor& outputs, const at::Tensor& targets) override {
    const at::Tensor there = targets.eq(targets);
    const at::Tensor errors = at::where(there, outputs.to(at::kDouble) - targets, 0);
    sums_.add_(at::stack({errors.square().sum(), there.sum().to(at::kDouble)}).to(at::kCPU));
  }
  [[nodiscard]] at::Tensor sums() const override { return sums_; }
  [[nodiscard]] std::optional<double> value(const at::Tensor& sums, const at::Tensor&,
                                            double) const override {
    const auto values = sums[1].item<double>();
    if (values == 0) return std::nullopt;
    return std::sqrt(sums[0].item<double>() / values);
  }

 private:
  at::Tensor sums_ = at::zeros({2}, at::kDouble);
};

class RmseKind final : public MetricKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "rmse"; }
  [[nodiscard]] Better better() const override { return Better::kLower; }
  [[nodiscard]] bool has_unit() const override { return true; }
  [[nodiscard]] std::string refusal(std::string_view, const MetricSubject& subject) const override {
    if (subject.loss->target_meaning() == TargetMeaning::kValues) return "";
    return "measures values, and the loss is " + std::string(subject.loss->name());
  }
  [[nodiscard]] std::unique_ptr<Metric> make(std::string_view,
                                             const MetricSubject&) const override {
    return std::make_unique<Rmse>();
  }
};

}  // namespace

const MetricKind& rmse_metric() {
  static const RmseKind kKind;
  return kKind;
}

}  // namespace troika
