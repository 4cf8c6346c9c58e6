#include <troika/loss/metric.h>
#include <troika/train/best_model.h>

#include <algorithm>
#include <cmath>

namespace troika {
namespace {

bool is_better_higher(const std::string& metric) {
  const MetricKind* kind = find_metric(metric);
  return kind != nullptr && kind->better() == Better::kHigher;
}

}  // namespace

BestModel::BestModel(const TrainOptions& options)
    : metric_(options.best_metric),
      patience_(options.early_stop_patience),
      higher_is_better_(is_better_higher(options.best_metric)) {}

std::optional<double> BestModel::value_of(const Evaluation& evaluation) const {
  if (metric_ == kLossMetric) return evaluation.held_out_loss;
  const auto found = std::ranges::find(evaluation.metrics, metric_, &NamedValue::name);
  if (found == evaluation.metrics.end()) return std::nullopt;
  return found->value;
}

bool BestModel::observe(std::int64_t step, const std::optional<Evaluation>& evaluation) {
  if (metric_ == kNoMetric || !evaluation) return false;
  const std::optional<double> value = value_of(*evaluation);
  const bool is_number = value && !std::isnan(*value);
  if (is_number &&
      (!best_ || (higher_is_better_ ? *value > best_->value : *value < best_->value))) {
    best_ = Best{step, *value};
    without_gain_ = 0;
    return true;
  }
  ++without_gain_;
  return false;
}

}  // namespace troika
