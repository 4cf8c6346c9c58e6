// Internal: columns of text that are dates or times, as whole numbers of a type of Arrow's.
#pragma once

#include <troika/data/arrow/plugin.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The format of dates and times as "2024-01-05" and "2024-01-05T12:30:00.5+01:00".
inline constexpr const char* kIsoTime = "iso";

// The notation of the times in a text column.
class TimeText {
 public:
  // Takes "iso", or a format of strptime(), such as "%d.%m.%Y".
  explicit TimeText(std::string format);

  // Returns why texts cannot be read by a format; empty where they can.
  [[nodiscard]] static std::string refusal_of(std::string_view format);

  [[nodiscard]] const std::string& format() const { return format_; }
  // Returns the type of its numbers: "date32[day]" where the format has no time of day, else
  // "timestamp[us]". Times are UTC.
  [[nodiscard]] const char* type_name() const;
  // Returns the number of a text; nothing where it is not written so.
  [[nodiscard]] std::optional<std::int64_t> operator()(std::string_view text) const;

 private:
  std::string format_;
  bool has_time_;
};

// Says how the text of a column is read.
struct TimeColumn {
  std::string column;            // a name, or a glob for columns not named otherwise
  std::optional<TimeText> text;  // nothing: it is no date
};
struct TimeColumns {
  std::vector<TimeColumn> columns;
  bool skips_unreadable = false;  // another text is no value, instead of an error

  // Returns how the dates of a column are written; null where nothing says that it has some.
  [[nodiscard]] const TimeText* find(const std::string& column) const;
};

// Holds the numbers of texts.
struct TimesOfTexts {
  std::vector<std::int64_t> integers;
  std::vector<std::uint8_t> there;
  std::optional<std::int64_t> unreadable;  // the first, a place in the values
};

// Reads the texts of a column. An empty text is no value.
[[nodiscard]] TimesOfTexts times_of(const arrow_plugin::Values& values, const TimeText& text);

}  // namespace troika
