// A record, by each rank, of the samples behind its updates: <run>/ledger/rank-N.jsonl. Whether
// every sample counts once can be told from it, whatever became of the run on the way.
#pragma once

#include <troika/data/loader.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace troika {

[[nodiscard]] std::filesystem::path ledger_path(const std::filesystem::path& run, int rank);

// Appends a line for each update. A run that goes on from a checkpoint takes some steps again: of
// two lines of a step the later one counts, and what is behind it in the file.
class Ledger {
 public:
  // Writes nothing before the first update.
  Ledger(const std::filesystem::path& run, int rank);

  // Notes the samples of a step, before its update.
  void begin(const StepBatch& batch);
  // Writes the line of the step that has begun, since its update has been applied:
  // {"step": 5, "ordinals": [32, 33], "samples": ["8f3c...", ...]}, each sample by a hash of its
  // tensors. Throws StorageError.
  void commit();

 private:
  std::filesystem::path path_;
  std::string line_;
};

}  // namespace troika
