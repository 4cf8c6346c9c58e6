// What `troika verify` keeps on disk while it works: a fresh folder for the runs, and in it the
// results, which outlive a job of ranks that fails.
#pragma once

#include <troika/verify/trials.h>

#include <filesystem>
#include <vector>

namespace troika {

// A fresh folder among the temporary files, removed with all that is in it.
class VerifyFolder {
 public:
  // Makes the folder. Throws StorageError.
  VerifyFolder();
  VerifyFolder(const VerifyFolder&) = delete;
  VerifyFolder& operator=(const VerifyFolder&) = delete;
  ~VerifyFolder();
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The results of trials in such a folder, in their order.
class TrialResults {
 public:
  explicit TrialResults(const std::filesystem::path& folder) : path_(folder / "results.jsonl") {}

  // Appends a result, and returns when it is in the file. Throws StorageError. One process at a
  // time.
  void add(const TrialResult& result) const;
  // Returns the results; none where there is no file. Throws DataError.
  [[nodiscard]] std::vector<TrialResult> read() const;

 private:
  std::filesystem::path path_;
};

}  // namespace troika
