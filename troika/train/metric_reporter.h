// What rank 0 tells the world about a run: metrics to the sinks that the recipe asks for, and
// progress to the person who waits.
#pragma once

#include <troika/config/recipe.h>
#include <troika/observe/metrics.h>
#include <troika/observe/progress.h>

#include <filesystem>
#include <memory>
#include <vector>

namespace troika {

class MetricReporter {
 public:
  // Throws StorageError, and UsageError for a Prometheus port that is in use.
  MetricReporter(const Recipe& recipe, const std::filesystem::path& run,
                 const ProgressOptions& progress);

  void record(const StepMetrics& metrics);
  // All that was recorded is on disk, and the progress line is ended.
  void finish();

 private:
  std::vector<std::unique_ptr<MetricSink>> sinks_;
  StepProgress progress_;
};

}  // namespace troika
