// Internal: files of predictions, written as the rows are made, so that their memory does not grow
// with the rows.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/data/kept_columns.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troika {

// A column of predictions: a number a row, or several.
struct PredictedColumn {
  std::string name;                     // of its tensor in a safetensors file
  std::vector<std::string> titles;      // of its columns in a table: one a number
  at::ScalarType type = at::kFloat;     // kLong, kFloat or kDouble
  std::vector<std::string> texts = {};  // what tables have in place of a number; empty: the number
};

// Not thread safe.
class PredictionWriter {
 public:
  virtual ~PredictionWriter() = default;
  // Appends rows: a tensor [rows] or [rows, titles] in the host's memory for each column, of its
  // type, and the values of kept columns. Throws StorageError.
  virtual void write(std::span<const at::Tensor> columns, std::span<const KeptValues> kept) = 0;
  // Puts the file in its place. Throws StorageError. Without it, what was there before stays.
  virtual void commit() = 0;
};

// Throws UsageError unless the ending of a path says how to write it.
void check_prediction_path(const std::filesystem::path& path);

// Begins a file of `rows` rows: .csv, .parquet or .safetensors. Kept columns come after the first;
// safetensors have none. Throws UsageError, StorageError.
[[nodiscard]] std::unique_ptr<PredictionWriter> create_predictions(
    const std::filesystem::path& path, std::vector<PredictedColumn> columns, std::int64_t rows,
    std::span<const KeptColumn> kept);
[[nodiscard]] std::unique_ptr<PredictionWriter> create_parquet_predictions(
    const std::filesystem::path& path, std::vector<PredictedColumn> columns,
    std::span<const KeptColumn> kept);

}  // namespace troika
