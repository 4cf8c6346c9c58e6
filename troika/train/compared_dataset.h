// The data set of a process of a job with servers, as it is compared with that of the others.
#pragma once

#include <troika/data/content_digests.h>
#include <troika/data/data_listing.h>
#include <troika/server/compared_data.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

// Processes may have files of their own. Then only what the data become tensors by is compared.
enum class OwnData { kNo, kYes };

class ComparedDataset final : public ComparedData {
 public:
  ComparedDataset(std::shared_ptr<const Dataset> dataset, OwnData own_data);

  [[nodiscard]] std::string host() const override;
  [[nodiscard]] std::string place() const override { return place_; }
  [[nodiscard]] std::optional<std::string> summary(Of of) override;
  [[nodiscard]] std::string excerpt(Of of, const std::string& other_summary) override;
  [[nodiscard]] std::string difference(Of of, const std::string& other_summary,
                                       std::string_view other_excerpt) override;
  [[nodiscard]] std::exception_ptr error(const std::string& message) const override;

 private:
  [[nodiscard]] DataListing listing(Of of) const;

  std::shared_ptr<const Dataset> dataset_;
  OwnData own_data_;
  std::string summary_;  // of the files
  std::string place_;
  std::mutex mutex_;  // of what follows
  std::optional<ContentDigests> digests_;
  std::optional<std::string> contents_;  // their summary
};

}  // namespace troika
