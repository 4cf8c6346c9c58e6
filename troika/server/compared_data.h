// The data of a process, as they are compared with those of others: between the ranks of a run
// (train/data_agreement.h), and by a coordinator with those of its workers. Neither knows what the
// texts say: they come from the data (data/data_listing.h).
#pragma once

#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

// The data of another process that differ, with the part that has the first difference.
struct OtherData {
  std::string name;     // of the process, as ComparedData::name()
  std::string summary;  // ComparedData::summary()
  std::string excerpt;  // ComparedData::excerpt() of the summary that it is compared with
};

// Thread safe.
class ComparedData {
 public:
  virtual ~ComparedData() = default;

  // The subject of a comparison: names and sizes of the files before the first step, and their
  // contents once both sides have read them.
  enum class Of { kFiles, kContents };

  // Returns what messages call this process: "rank 1 on host b".
  [[nodiscard]] virtual std::string name() const = 0;
  // Returns a text that processes have in common which read the very same files, whose contents
  // need no comparison. Empty where contents are never compared.
  [[nodiscard]] virtual std::string identity() = 0;
  // Returns a short text that is equal for equal data. Of contents: begins to read them, and
  // returns nothing until they are known.
  [[nodiscard]] virtual std::optional<std::string> summary(Of of) = 0;
  // Returns the part of these data that has the first difference from data of another summary.
  // Requires that the own summary is known.
  [[nodiscard]] virtual std::string excerpt(Of of, const std::string& other_summary) = 0;
  // Says that and how these data differ from others: "rank 1 on host b has other data than rank 0
  // on host a: 'text/c.txt' (file 3 of 12) is 4.0 KiB longer".
  [[nodiscard]] virtual std::string difference(Of of, const OtherData& other) = 0;
  // Returns the error of a job whose processes have other data.
  [[nodiscard]] virtual std::exception_ptr error(const std::string& message) const = 0;
};

// The checkpoints that may hold what was trained on other data, by the first step of such a one.
struct DataDoubt {
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  std::int64_t possible = kNever;  // on data whose contents have not been compared
  std::int64_t certain = kNever;   // on data that differ
  std::string reason = {};         // how these differ; empty where none do
};

}  // namespace troika
