// The data of a process of a job with servers, as a coordinator compares those of its workers with
// its own. Neither side knows what the texts say: they come from the data (data/data_listing.h).
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

// Thread safe.
class ComparedData {
 public:
  virtual ~ComparedData() = default;

  // The subject of a comparison: names and sizes of the files as a worker joins, and their contents
  // once both sides have read them.
  enum class Of { kFiles, kContents };

  // Returns the name of this host, for messages.
  [[nodiscard]] virtual std::string host() const = 0;
  // Returns a text that processes have in common which read the very same files, whose contents
  // need no comparison. Empty where contents are never compared.
  [[nodiscard]] virtual std::string place() const = 0;
  // Returns a short text that is equal for equal data. Of contents: begins to read them, and
  // returns nothing until they are known.
  [[nodiscard]] virtual std::optional<std::string> summary(Of of) = 0;
  // Returns the part of these data that has the first difference from data of another summary.
  // Requires that the own summary is known.
  [[nodiscard]] virtual std::string excerpt(Of of, const std::string& other_summary) = 0;
  // Says how these data differ from others, given the summary and excerpt of the others.
  [[nodiscard]] virtual std::string difference(Of of, const std::string& other_summary,
                                               std::string_view other_excerpt) = 0;
  // Returns the error of a job whose processes have other data.
  [[nodiscard]] virtual std::exception_ptr error(const std::string& message) const = 0;
};

}  // namespace troika
