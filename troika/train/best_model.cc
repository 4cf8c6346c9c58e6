#include <troika/loss/metric.h>
#include <troika/train/best_model.h>

#include <algorithm>
#include <cmath>

namespace troika {

bool is_higher_better(const std::string& metric) {
  const MetricKind* kind = find_metric(metric);
  return kind != nullptr && kind->better() == Better::kHigher;
}

std::optional<double> figure_of(const Evaluation& evaluation, const std::string& metric) {
  double value = evaluation.held_out_loss;
  if (metric != kNoMetric && metric != kLossMetric) {
    const auto found = std::ranges::find(evaluation.metrics, metric, &NamedValue::name);
    if (found == evaluation.metrics.end()) return std::nullopt;
    value = found->value;
  }
  return std::isnan(value) ? std::nullopt : std::optional(value);
}

BestModel::BestModel(const TrainOptions& options)
    : metric_(options.best_metric),
      patience_(options.early_stop_patience),
      higher_is_better_(is_higher_better(options.best_metric)) {}

bool BestModel::observe(std::int64_t step, const std::optional<Evaluation>& evaluation) {
  if (metric_ == kNoMetric || !evaluation) return false;
  const std::optional<double> value = figure_of(*evaluation, metric_);
  if (value && (!best_ || (higher_is_better_ ? *value > best_->value : *value < best_->value))) {
    best_ = Best{step, *value};
    without_gain_ = 0;
    return true;
  }
  const bool says_nothing = !value && std::isfinite(evaluation->held_out_loss);
  if (!says_nothing) ++without_gain_;
  return false;
}

void BestModel::save(StateDict& state) const {
  state.set("best.without_gain", without_gain_);
  if (!best_) return;
  state.set("best.step", best_->step);
  state.set("best.value", best_->value);
}

void BestModel::load(const StateDict& state) {
  if (!state.numbers().contains("best.without_gain")) return;
  without_gain_ = state.integer("best.without_gain");
  if (!state.numbers().contains("best.step")) return;
  best_ = Best{state.integer("best.step"), state.number("best.value")};
}

}  // namespace troika
