// The data of one process as text, so that ranks and processes that have to read the same data can
// compare them: the files by name and size, or by content, in the order in which they are read.
// Summaries are short. Where two differ, one block of each listing has the first difference.
#pragma once

#include <troika/base/error.h>
#include <troika/data/dataset.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The number of entries of a block. A summary has 17 bytes for each block.
inline constexpr std::int64_t kListingBlock = 512;

// Processes have trained together on data that differ.
class OtherDataError : public DataError {
 public:
  using DataError::DataError;
};

class DataListing {
 public:
  // Lists the files, then how the data become tensors, then the fingerprint.
  [[nodiscard]] static DataListing of(const Dataset& dataset);
  // Lists only how the data become tensors, for processes whose files differ on purpose.
  [[nodiscard]] static DataListing of_description(const Dataset& dataset);
  // Lists the contents of files by a text each, such as a hash.
  [[nodiscard]] static DataListing of_contents(std::span<const DataFile> files,
                                               std::span<const std::string> contents);

  // Returns a text that is equal for equal listings.
  [[nodiscard]] const std::string& summary() const { return summary_; }
  // Returns the entries of the first block in which the summaries differ. Throws DataError where
  // `other_summary` is none.
  [[nodiscard]] std::string excerpt(std::string_view other_summary) const;
  // Says how this listing differs from another one, given summary() and excerpt(this summary) of
  // that one: "'text/c.txt' (file 3 of 12) is 4.00 KiB longer".
  [[nodiscard]] std::string difference_from(std::string_view other_summary,
                                            std::string_view other_excerpt) const;

  // Returns the files by name and size as printable lines of bounded length, for a manifest.
  [[nodiscard]] std::string record() const;
  // Says how this listing differs from the one that record() was made of: the first difference, and
  // how many more files differ. Empty where no file differs. Throws DataError for no such text.
  [[nodiscard]] std::string changes_since(std::string_view record) const;

 private:
  explicit DataListing(std::vector<std::string> entries, std::int64_t files);

  std::vector<std::string> entries_;
  std::int64_t files_ = 0;  // the first entries
  std::string summary_;
};

}  // namespace troika
