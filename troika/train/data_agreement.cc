#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/observe/log.h>
#include <troika/storage/digest_cache.h>
#include <troika/train/data_agreement.h>

#include <algorithm>
#include <set>
#include <vector>

namespace troika {
namespace {

constexpr const char* kFilesHint = "every host needs the same files behind data.paths";

std::string name_of_rank(const Job& job, std::size_t rank) {
  return "rank " + std::to_string(rank) + " on host " + job.members()[rank].host;
}

// Collective: returns how the first rank with another listing differs from rank 0, the same on
// every rank; empty where none does. Ranks without a listing have no part in it.
std::string first_difference(const Job& job, const DataListing* own) {
  const auto all = job.gather(own != nullptr ? own->summary() : "", "data of all ranks");
  const auto other = std::ranges::find_if(
      all, [&](const std::string& each) { return !each.empty() && each != all[0]; });
  if (other == all.end()) return "";
  const auto rank = static_cast<std::size_t>(other - all.begin());
  const bool is_first = job.rank() == 0;
  const std::string excerpt =
      job.gather(is_first ? own->excerpt(*other) : "", "data of rank 0").front();
  const bool is_other = static_cast<std::size_t>(job.rank()) == rank;
  const auto words =
      job.gather(is_other ? own->difference_from(all[0], excerpt) : "", "data that differ");
  return name_of_rank(job, rank) + " has other data than " + name_of_rank(job, 0) + ": " +
         words[rank];
}

}  // namespace

std::string check_unchanged(const Metadata& provenance, const Dataset& dataset,
                            const DataListing& listing, bool may_change) {
  const auto data = provenance.find("data");
  if (data == provenance.end() || data->second == dataset.fingerprint()) return "";
  const auto files = provenance.find(kDataFilesEntry);
  std::string change = files != provenance.end() ? listing.changes_since(files->second) : "";
  if (change.empty()) change = "the same files give other samples";
  if (may_change) return "the data have changed since the run began: " + change;
  throw DataError("the data are not those that the run began with: " + change,
                  "--resume goes on with them, --overwrite starts the run again");
}

DataAgreement::DataAgreement(const Job& job, const Dataset& dataset, const DataListing& listing)
    : job_(job) {
  if (job.size() == 1) return;
  const auto own = static_cast<std::int64_t>(content_hash(listing.summary()));
  const auto all = job.gather(own, {"data of all ranks", job.start_deadline()});
  if (std::ranges::any_of(all, [&](std::int64_t each) { return each != all[0]; })) {
    throw DataError(first_difference(job, &listing), kFilesHint);
  }
  const auto rank = static_cast<std::size_t>(job.rank());
  const std::vector<DataFile> files = dataset.files();
  const auto place = static_cast<std::int64_t>(
      content_hash(job.members()[rank].host_identity, identity_of_files(files)));
  const auto places = job.gather(place, {"places of the data", job.deadline()});
  is_open_ = !files.empty() && std::set(places.begin(), places.end()).size() > 1;
  const auto first = std::ranges::find(places, place) - places.begin();
  if (!is_open_ || first != job.rank()) return;
  ContentDigestOptions options;
  options.cache = DigestCache::user_folder();
  digests_.emplace(files, options);
}

bool DataAgreement::is_hashed() const {
  return is_open_ && (!digests_ || digests_->is_done());
}

void DataAgreement::warn_if_open() const {
  if (!is_open_) return;
  log_warning(
      "the run has ended before the contents of its data files had been compared between hosts");
}

void DataAgreement::after_step(const StepNotes& notes) {
  if (!is_open_ || !notes.data_hashed) return;
  is_open_ = false;
  std::optional<DataListing> own;
  if (digests_) own = digests_->listing();
  const std::string difference = first_difference(job_, own ? &*own : nullptr);
  digests_.reset();
  if (!difference.empty()) throw OtherDataError(difference, kFilesHint);
}

}  // namespace troika
