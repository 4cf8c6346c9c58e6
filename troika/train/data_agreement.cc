#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/observe/log.h>
#include <troika/session/consensus.h>
#include <troika/session/rank_name.h>
#include <troika/train/data_agreement.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

namespace troika {

using Of = ComparedData::Of;

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

DataAgreement::DataAgreement(const Session& session, Seconds patience,
                             std::shared_ptr<ComparedData> data)
    : session_(session), data_(std::move(data)) {
  if (session_.size() == 1) return;
  session_.world().barrier({"data of all ranks", Deadline::in(patience)}).wait();
  compare(Of::kFiles, TakesPart::kYes);
  const std::string place = data_->identity();
  const auto places = statements_of(
      session_.gather(place.empty() ? "" : hex(content_hash(place)), "places of the data"));
  is_open_ = places.size() > 1;
  if (!is_open_) {
    data_.reset();
    return;
  }
  hashes_ = std::ranges::any_of(
      places, [&](const Statement& each) { return each.ranks.front() == session_.rank(); });
  if (hashes_) (void)data_->summary(Of::kContents);
}

bool DataAgreement::is_hashed() const {
  return is_open_ && (!hashes_ || data_->summary(Of::kContents));
}

void DataAgreement::warn_if_open() const {
  if (!is_open_) return;
  log_warning(
      "the run has ended before the contents of its data files had been compared between hosts");
}

void DataAgreement::after_step(const StepNotes& notes) {
  if (!is_open_ || !notes.data_hashed) return;
  is_open_ = false;
  compare(Of::kContents, hashes_ ? TakesPart::kYes : TakesPart::kNo);
  data_.reset();
}

void DataAgreement::compare(Of of, TakesPart takes_part) const {
  constexpr std::string_view kLabel = "data that differ";
  const std::string own = takes_part == TakesPart::kYes ? data_->summary(of).value_or("") : "";
  const auto groups = statements_of(
      session_.gather(own.empty() ? "" : hex(content_hash(own)), "data of all ranks"));
  if (groups.size() < 2) return;
  const auto count = [](const Statement& each) { return each.ranks.size(); };
  const auto most = std::ranges::max_element(groups, {}, count);
  const auto other = most == groups.begin() ? most + 1 : groups.begin();
  const auto theirs = static_cast<std::size_t>(most->ranks.front()),
             odd = static_cast<std::size_t>(other->ranks.front()),
             self = static_cast<std::size_t>(session_.rank());
  const bool tells = self == theirs || self == odd;
  const std::vector<std::string> summaries = session_.gather(tells ? own : "", kLabel);
  const std::vector<std::string> excerpts =
      session_.gather(self == theirs ? data_->excerpt(of, summaries[odd]) : "", kLabel);
  OtherData reference{name_of_rank(most->ranks.front(), session_.members()), summaries[theirs],
                      excerpts[theirs]};
  if (const auto more = std::ssize(most->ranks) - 1; more > 0) {
    reference.name += " and " + plural(more, "more rank");
  }
  const std::vector<std::string> words =
      session_.gather(self == odd ? data_->difference(of, reference) : "", kLabel);
  std::rethrow_exception(data_->error(words[odd]));
}

}  // namespace troika
