// What the ranks of a job have in common of their data: names and sizes of the files before the
// first step, and their contents as soon as they have been read once in the background. Also what
// has changed in the data of a run that goes on.
#pragma once

#include <troika/base/time.h>
#include <troika/checkpoint/safetensors_header.h>
#include <troika/data/data_listing.h>
#include <troika/server/compared_data.h>
#include <troika/session/session.h>
#include <troika/train/trainer.h>

#include <memory>
#include <string>

namespace troika {

// The name of DataListing::record() in a manifest's provenance.
inline constexpr const char* kDataFilesEntry = "data_files";

// Throws DataError where a run that goes on has other data than the one that wrote `provenance`,
// with the first file that differs. Where data may change (`may_change`) it returns that line
// instead; empty where nothing has changed.
[[nodiscard]] std::string check_unchanged(const Metadata& provenance, const Dataset& dataset,
                                          const DataListing& listing, bool may_change);

// Compares the data of all ranks.
class DataAgreement {
 public:
  // Collective: compares the files by name and size; ranks may come up to `patience` later than
  // others. Throws DataError on every rank, which names the first file that differs, how, and both
  // ranks: one that differs from most. Where ranks read copies of the files it begins to hash them:
  // one rank of those that read the very same files. Ranks of one host do so as a rule, and then
  // nothing is hashed.
  DataAgreement(const Session& session, Seconds patience, std::shared_ptr<ComparedData> data);

  // Returns whether contents are to be compared, and have not been; the same on every rank.
  [[nodiscard]] bool is_open() const { return is_open_; }
  // Returns what this rank tells the others with a step: that its contents are known. Always false
  // where contents are not to be compared, or have been.
  [[nodiscard]] bool is_hashed() const;
  // Collective, after each step: compares contents once all ranks have told. Throws OtherDataError
  // on every rank, in words as above.
  void after_step(const StepNotes& notes);
  // Says in the log, at the end of a run, that contents have not been compared, where they have
  // not.
  void warn_if_open() const;

 private:
  // Collective: compares the data of the ranks that take part.
  enum class TakesPart { kNo, kYes };
  void compare(ComparedData::Of of, TakesPart takes_part) const;

  Session session_;
  std::shared_ptr<ComparedData> data_;  // until all is compared: of many files it is large
  bool is_open_ = false;                // contents are to be compared: the same on every rank
  bool hashes_ = false;                 // this rank does
};

}  // namespace troika
