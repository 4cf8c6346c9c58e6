// The data set of a process, as it is compared with that of others.
#pragma once

#include <troika/data/content_digests.h>
#include <troika/data/data_listing.h>
#include <troika/data/kind.h>
#include <troika/server/compared_data.h>
#include <troika/train/job.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace troika {

// Processes may have files of their own. Then only what the data become tensors by is compared.
enum class OwnData { kNo, kYes };

struct ComparedDatasetOptions {
  std::string name;  // ComparedData::name()
  std::string hint;  // of the error where the data differ
  OwnData own_data = OwnData::kNo;
  // DataListing::of(dataset).summary() where it is known; with `own_data` it is not asked for.
  std::optional<std::string> summary = {};
};

class ComparedDataset final : public ComparedData {
 public:
  ComparedDataset(std::shared_ptr<const Dataset> dataset, ComparedDatasetOptions options);

  [[nodiscard]] std::string name() const override { return options_.name; }
  [[nodiscard]] std::string identity() override;
  [[nodiscard]] std::optional<std::string> summary(Of of) override;
  [[nodiscard]] std::string excerpt(Of of, const std::string& other_summary) override;
  [[nodiscard]] std::string difference(Of of, const OtherData& other) override;
  [[nodiscard]] std::exception_ptr error(const std::string& message) const override;

 private:
  [[nodiscard]] DataListing listing(Of of) const;

  std::shared_ptr<const Dataset> dataset_;
  ComparedDatasetOptions options_;
  std::string summary_;  // of the files
  std::mutex mutex_;     // of what follows
  std::optional<std::string> identity_;
  std::optional<ContentDigests> digests_;
  std::optional<std::string> contents_;  // their summary
};

// Returns the data of a rank of a job, for the job's other ranks. `summary` is
// ComparedDatasetOptions::summary.
[[nodiscard]] std::shared_ptr<ComparedData> data_of_rank(std::shared_ptr<const Dataset> dataset,
                                                         const Job& job, const DataKind& kind,
                                                         std::optional<std::string> summary = {});

// Returns "every host needs the same files behind data.files", with the key by which this kind of
// data names them. `who` is "host" or "worker".
[[nodiscard]] std::string same_files_hint(const std::string& who, const DataKind& kind);

}  // namespace troika
