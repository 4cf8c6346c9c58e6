#include <troika/base/hash.h>
#include <troika/rendezvous/endpoint.h>
#include <troika/rendezvous/environment.h>
#include <troika/storage/digest_cache.h>
#include <troika/train/compared_dataset.h>

#include <utility>

namespace troika {

ComparedDataset::ComparedDataset(std::shared_ptr<const Dataset> dataset, OwnData own_data)
    : dataset_(std::move(dataset)), own_data_(own_data), summary_(listing(Of::kFiles).summary()) {
  const std::vector<DataFile> files = dataset_->files();
  if (own_data == OwnData::kYes || files.empty()) return;
  place_ = host_identity() + " " + hex(identity_of_files(files));
}

// Of many files it is large, and asked for once.
DataListing ComparedDataset::listing(Of of) const {
  if (of == Of::kContents) return digests_->listing();
  return own_data_ == OwnData::kYes ? DataListing::of_description(*dataset_)
                                    : DataListing::of(*dataset_);
}

std::string ComparedDataset::host() const {
  return Environment::of_process().host().name;
}

std::optional<std::string> ComparedDataset::summary(Of of) {
  if (of == Of::kFiles) return summary_;
  const std::lock_guard lock(mutex_);
  if (!digests_) {
    ContentDigestOptions options;
    options.cache = DigestCache::user_folder();
    digests_.emplace(dataset_->files(), options);
  }
  if (!contents_ && digests_->is_done()) contents_ = listing(of).summary();
  return contents_;
}

std::string ComparedDataset::excerpt(Of of, const std::string& other_summary) {
  const std::lock_guard lock(mutex_);
  return listing(of).excerpt(other_summary);
}

std::string ComparedDataset::difference(Of of, const std::string& other_summary,
                                        std::string_view other_excerpt) {
  const std::lock_guard lock(mutex_);
  return listing(of).difference_from(other_summary, other_excerpt);
}

std::exception_ptr ComparedDataset::error(const std::string& message) const {
  const bool is_own = own_data_ == OwnData::kYes;
  return std::make_exception_ptr(OtherDataError(
      message, is_own ? "with sync.own_data = true all workers still need the same classes, scales "
                        "and words: write them into [data]"
                      : "every worker needs the same files behind data.paths; sync.own_data = true "
                        "says that workers have their own on purpose"));
}

}  // namespace troika
