// What rank 0 tells the world about a run: metrics to the sinks that the recipe asks for, and
// progress to the person who waits.
#pragma once

#include <troika/observe/metrics.h>
#include <troika/observe/progress.h>
#include <troika/recipe/recipe.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace troika {

// Returns the unit of a training rate: "tokens", or "samples" where a sample has no tokens.
[[nodiscard]] std::string unit_of(const Recipe& recipe);

class MetricReporter {
 public:
  // Prepares the sinks without touching a file. Throws UsageError for a Prometheus port that is in
  // use.
  MetricReporter(const Recipe& recipe, const ProgressOptions& progress);

  // Begins the files in the folder of the run, or goes on behind step `done` of a run that was
  // there; what the files have of later steps is cut off. Throws StorageError.
  void open(const Recipe& recipe, const std::filesystem::path& run, std::int64_t done = 0);
  void record(const StepMetrics& metrics);
  // Flushes all records to disk, ends the progress line, and says what was counted in the steps
  // recorded here: "staleness of 1200 updates: 0: 41 %, 1: 59 %, mean 0.6, largest 1".
  void finish();

 private:
  std::vector<std::unique_ptr<MetricSink>> sinks_;
  StepProgress progress_;
  std::int64_t done_ = 0;            // steps of the run before the first recorded here
  std::vector<NamedCounts> counts_;  // sums over the steps recorded here
};

}  // namespace troika
