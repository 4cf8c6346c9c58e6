#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/data/named_files.h>
#include <troika/rendezvous/endpoint.h>
#include <troika/session/rank_name.h>
#include <troika/storage/digest_cache.h>
#include <troika/train/compared_dataset.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

namespace troika {

ComparedDataset::ComparedDataset(std::shared_ptr<const Dataset> dataset,
                                 ComparedDatasetOptions options)
    : dataset_(std::move(dataset)), options_(std::move(options)) {
  const bool is_known = options_.summary && options_.own_data == OwnData::kNo;
  summary_ = is_known ? *options_.summary : listing(Of::kFiles).summary();
}

std::string ComparedDataset::identity() {
  const std::lock_guard lock(mutex_);
  if (identity_) return *identity_;
  const std::vector<DataFile> files = dataset_->files();
  const bool is_compared = options_.own_data == OwnData::kNo && !files.empty();
  identity_ = is_compared ? host_identity() + " " + hex(identity_of_files(files)) : "";
  return *identity_;
}

// Of many files it is large, and asked for once.
DataListing ComparedDataset::listing(Of of) const {
  if (of == Of::kContents) return digests_->listing();
  return options_.own_data == OwnData::kYes ? DataListing::of_description(*dataset_)
                                            : DataListing::of(*dataset_);
}

std::optional<std::string> ComparedDataset::summary(Of of) {
  if (of == Of::kFiles) return summary_;
  const std::lock_guard lock(mutex_);
  if (!digests_) {
    ContentDigestOptions options;
    options.cache = DigestCache::user_folder();
    if (const auto* named = dynamic_cast<const NamesFiles*>(dataset_.get())) {
      options.more = [named](const std::stop_token& stop) { return named->named_files(stop); };
    }
    digests_.emplace(dataset_->files(), options);
  }
  if (!contents_ && digests_->is_done()) contents_ = listing(of).summary();
  return contents_;
}

std::string ComparedDataset::excerpt(Of of, const std::string& other_summary) {
  const std::lock_guard lock(mutex_);
  return listing(of).excerpt(other_summary);
}

std::string ComparedDataset::difference(Of of, const OtherData& other) {
  const std::lock_guard lock(mutex_);
  return options_.name + " has other data than " + other.name + ": " +
         listing(of).difference_from(other.summary, other.excerpt);
}

std::exception_ptr ComparedDataset::error(const std::string& message) const {
  return std::make_exception_ptr(OtherDataError(message, options_.hint));
}

std::shared_ptr<ComparedData> data_of_rank(std::shared_ptr<const Dataset> dataset, const Job& job,
                                           const DataKind& kind,
                                           std::optional<std::string> summary) {
  ComparedDatasetOptions options;
  options.name = name_of_rank(job.rank(), job.members());
  options.hint = same_files_hint("host", kind);
  options.summary = std::move(summary);
  return std::make_shared<ComparedDataset>(std::move(dataset), std::move(options));
}

std::string same_files_hint(const std::string& who, const DataKind& kind) {
  static constexpr auto kKeys =
      std::to_array<std::string_view>({"paths", "files", "path", "tokenizer"});
  std::vector<std::string> keys;
  for (const std::string_view each : kKeys) {
    const bool has_key = std::ranges::find(kind.keys(), each, &Key::name) != kind.keys().end();
    if (has_key) keys.push_back("data." + std::string(each));
  }
  return "every " + who + " needs the same files" +
         (keys.empty() ? "" : " behind " + join(keys, " and "));
}

}  // namespace troika
