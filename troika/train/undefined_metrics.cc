#include <troika/loss/metric.h>
#include <troika/observe/log.h>
#include <troika/train/undefined_metrics.h>

#include <algorithm>
#include <cmath>

namespace troika {

UndefinedMetrics::UndefinedMetrics(const TrainOptions& options)
    : unseen_(options.metrics), best_(options.best_metric) {}

std::vector<std::string> UndefinedMetrics::observe(const Evaluation& evaluation) {
  std::vector<std::string> sentences;
  if (!std::isfinite(evaluation.held_out_loss)) return sentences;
  std::erase_if(unseen_, [&](const std::string& metric) {
    if (std::ranges::count(evaluation.metrics, metric, &NamedValue::name) > 0) return false;
    std::string sentence = "of the held-out samples, " + undefined_metric(metric);
    if (metric == best_) sentence += "; such evaluations find no best model";
    sentences.push_back(std::move(sentence));
    return true;
  });
  return sentences;
}

void UndefinedMetrics::warn(const Evaluation& evaluation) {
  for (const std::string& each : observe(evaluation)) log_warning(each);
}

}  // namespace troika
