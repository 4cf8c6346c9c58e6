// The area under the ROC curve: the chance that a positive sample has a larger score than a
// negative one, ties counting half (Mann and Whitney 1947). Scores and labels are gathered: it is
// no mean over ranks.
#include <ATen/ATen.h>
#include <troika/loss/metric.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace troika {
namespace {

// Of one output; nothing where positives or negatives are missing.
std::optional<double> area(const std::vector<double>& scores, const std::vector<bool>& positive) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::size_t i) { return scores[i]; });
  double rank_sum = 0, positives = 0;
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin;
    double among = 0;
    for (; end < order.size() && scores[order[end]] == scores[order[begin]]; ++end) {
      if (positive[order[end]]) ++among;
    }
    // Ranks begin + 1 to end share their mean.
    rank_sum += among * (static_cast<double>(begin + 1 + end) / 2);
    positives += among;
    begin = end;
  }
  const double negatives = static_cast<double>(order.size()) - positives;
  if (positives == 0 || negatives == 0) return std::nullopt;
  return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives);
}

// Rows are the scores of all outputs, then their labels; a label that is not a number is missing.
class Auc final : public Metric {
 public:
  explicit Auc(const MetricSubject& subject)
      : binary_(subject.loss->target_meaning() == TargetMeaning::kAnswers),
        outputs_(binary_ ? subject.outputs : 1) {}

  void add(const at::Tensor& outputs, const at::Tensor& targets) override {
    const at::Tensor scores =
        binary_ ? outputs : (outputs.select(1, 1) - outputs.select(1, 0)).unsqueeze(1);
    const at::Tensor labels = binary_ ? targets : targets.unsqueeze(1);
    at::Tensor rows =
        at::cat({scores.to(at::kCPU, at::kDouble), labels.to(at::kCPU, at::kDouble)}, 1);
    if (!binary_) rows = rows.index({rows.select(1, 1).ge(0)});  // targets that do not count
    parts_.push_back(rows);
  }
  [[nodiscard]] at::Tensor rows() const override {
    if (parts_.empty()) return at::empty({0, 2 * outputs_}, at::kDouble);
    return at::cat(parts_);
  }
  [[nodiscard]] std::optional<double> value(const at::Tensor&, const at::Tensor& rows,
                                            double) const override {
    double total = 0;
    int defined = 0;
    for (std::int64_t output = 0; output < outputs_; ++output) {
      const std::optional<double> one = area_of(rows, output);
      if (!one) continue;
      total += *one;
      ++defined;
    }
    if (defined == 0) return std::nullopt;
    return total / defined;
  }

 private:
  [[nodiscard]] std::optional<double> area_of(const at::Tensor& rows, std::int64_t output) const {
    const at::Tensor columns = rows.contiguous();
    const auto* values = columns.const_data_ptr<double>();
    std::vector<double> scores;
    std::vector<bool> positive;
    for (std::int64_t i = 0; i < rows.size(0); ++i) {
      const double score = values[i * 2 * outputs_ + output];
      const double label = values[i * 2 * outputs_ + outputs_ + output];
      if (std::isnan(score)) return std::nullopt;
      if (std::isnan(label)) continue;
      scores.push_back(score);
      positive.push_back(label > 0.5);
    }
    return area(scores, positive);
  }

  bool binary_;
  std::int64_t outputs_;
  std::vector<at::Tensor> parts_;
};

class AucKind final : public MetricKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "auc"; }
  [[nodiscard]] std::string_view value_needs() const override {
    return "samples of both classes, and these are all of one";
  }
  [[nodiscard]] std::string refusal(std::string_view, const MetricSubject& subject) const override {
    if (subject.loss->target_meaning() == TargetMeaning::kAnswers) return "";
    if (subject.loss->target_meaning() != TargetMeaning::kClass) {
      return "ranks answers to yes-or-no questions, and the loss is " +
             std::string(subject.loss->name());
    }
    if (subject.outputs == 2) return "";
    return "tells two classes apart, and there are " + std::to_string(subject.outputs);
  }
  [[nodiscard]] std::unique_ptr<Metric> make(std::string_view,
                                             const MetricSubject& subject) const override {
    return std::make_unique<Auc>(subject);
  }
};

}  // namespace

const MetricKind& auc_metric() {
  static const AucKind kKind;
  return kKind;
}

}  // namespace troika
