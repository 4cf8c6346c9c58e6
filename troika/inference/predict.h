// Predictions and metrics of a trained model on the samples of a data set.
#pragma once

#include <troika/inference/trained_model.h>
#include <troika/observe/metrics.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace troika {

enum class Side { kAuto, kTrain, kHeldOut, kTest };  // kAuto: held-out samples where there are any

// The samples of a run's data set, or of another one.
struct SampleChoice {
  // Changes to [data] of the run's recipe, "data.paths=[...]", and to train.precision. Others are
  // refused.
  std::vector<std::string> overrides;
  // Other files than the run's, all of whose samples are meant; empty: the run's.
  std::vector<std::string> files;
  Side side = Side::kAuto;
  // The most samples to take; absent: all.
  std::optional<std::int64_t> limit;
};

struct PredictOptions {
  std::filesystem::path run;
  SampleChoice samples;
  std::string device = "cpu";
  SavedModel which = SavedModel::kLast;
  // Names columns of the data that predict() writes beside what it predicts.
  std::vector<std::string> keep;
  // Says how many of the likeliest classes predict() writes, in place of the probabilities of all;
  // 0: those of all.
  std::int64_t top = 0;
  // Gets the number of samples that are done, and that of all.
  std::function<void(std::int64_t done, std::int64_t all)> on_progress;
};

struct Predicted {
  std::int64_t rows = 0;
  std::vector<std::string> warnings;  // for the user, one line each
};

// Writes a row for each sample to `path`, by its ending: `.csv`, `.parquet` or `.safetensors`. A
// row has the sample's number, that of its row in a table. As the loss says what outputs mean, it
// has a class with the probabilities of all, the probabilities of answers, or values. Other outputs
// of the model follow under their names. Classes and columns have the names of the run's data.
// Samples become tensors as those of training did, and need no targets. The memory that it takes
// does not grow with the samples. Throws DataError, UsageError, StorageError; the earlier file
// stays then.
Predicted predict(const PredictOptions& options, const std::filesystem::path& path);

// The figures of a trained model on some samples.
struct Evaluated {
  std::int64_t samples = 0;
  double loss = 0;
  std::optional<double> bits_per_byte;  // of text
  std::vector<NamedValue> metrics;      // [train] metrics
  std::vector<std::string> warnings;    // for the user, one line each
};

// Evaluates the model. Samples become tensors as those of training did. Throws DataError,
// UsageError.
[[nodiscard]] Evaluated evaluate(const PredictOptions& options);

}  // namespace troika
