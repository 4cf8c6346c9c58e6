#include <troika/observe/jsonl_sink.h>
#include <troika/observe/prometheus_sink.h>
#include <troika/observe/tensorboard_sink.h>
#include <troika/train/metric_reporter.h>

#include <iostream>

namespace troika {

std::string unit_of(const Recipe& recipe) {
  return std::string(traits_of(recipe.model).sample.unit);
}

MetricReporter::MetricReporter(const Recipe& recipe, const ProgressOptions& progress)
    : progress_(std::cerr, recipe.train.steps, unit_of(recipe), progress) {
  if (recipe.observe.prometheus_port != 0) {
    PrometheusOptions options;
    options.port = static_cast<int>(recipe.observe.prometheus_port);
    options.run = recipe.name;
    sinks_.push_back(std::make_unique<PrometheusSink>(options));
  }
}

void MetricReporter::open(const Recipe& recipe, const std::filesystem::path& run) {
  sinks_.push_back(std::make_unique<JsonlSink>(run / "metrics.jsonl"));
  if (recipe.observe.tensorboard) sinks_.push_back(std::make_unique<TensorBoardSink>(run));
}

void MetricReporter::record(const StepMetrics& metrics) {
  for (const auto& sink : sinks_) sink->record(metrics);
  progress_.update(metrics);
}

void MetricReporter::finish() {
  for (const auto& sink : sinks_) sink->flush();
  progress_.finish();
}

}  // namespace troika
