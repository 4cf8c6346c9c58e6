#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/observe/jsonl_sink.h>
#include <troika/observe/log.h>
#include <troika/observe/prometheus_sink.h>
#include <troika/observe/tensorboard_sink.h>
#include <troika/train/metric_reporter.h>

#include <algorithm>
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
    options.address = recipe.observe.prometheus_address;
    options.run = recipe.name;
    sinks_.push_back(std::make_unique<PrometheusSink>(options));
  }
}

void MetricReporter::open(const Recipe& recipe, const std::filesystem::path& run,
                          std::int64_t done) {
  done_ = done;
  const std::filesystem::path lines = run / "metrics.jsonl";
  if (done > 0 && !std::filesystem::exists(lines)) {
    log_warning(shown_path(lines) + " is gone: it begins anew behind step " + std::to_string(done));
  }
  if (done > 0) cut_behind_step(lines, done);
  sinks_.push_back(std::make_unique<JsonlSink>(
      lines, done > 0 ? AppendFile::Mode::kKeepLines : AppendFile::Mode::kTruncate));
  if (recipe.observe.tensorboard) sinks_.push_back(std::make_unique<TensorBoardSink>(run, done));
}

void MetricReporter::record(const StepMetrics& metrics) {
  for (const auto& sink : sinks_) sink->record(metrics);
  progress_.update(metrics);
  for (const NamedCounts& each : metrics.counts) {
    auto sum = std::ranges::find(counts_, each.name, &NamedCounts::name);
    if (sum == counts_.end()) sum = counts_.insert(sum, {each.name, each.unit});
    add_counts(sum->counts, each.counts);
  }
}

void MetricReporter::finish() {
  for (const auto& sink : sinks_) sink->flush();
  progress_.finish();
  for (const NamedCounts& each : counts_) {
    if (each.counts.empty()) continue;
    log_info(each.name + " of " + plural(total_count(each.counts), each.unit) +
             (done_ > 0 ? " since step " + std::to_string(done_) : std::string()) + ": " +
             describe_counts(each.counts));
  }
}

}  // namespace troika
