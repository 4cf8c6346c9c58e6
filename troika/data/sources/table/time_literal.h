// Internal: dates and times as people write them, and as the whole numbers that files store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

// Returns "2024-01-05", "2024-01-05 12:30:00.5" or, of a time of day, "12:30" in the unit of a
// type: "date32[day]", "timestamp[us, tz=UTC]", "time32[s]". Times are UTC, unless an offset such
// as "+01:00" follows. Nothing where it is none of those, or no whole number of that unit.
[[nodiscard]] std::optional<std::int64_t> time_in_unit(std::string_view text,
                                                       std::string_view type_name);

// Returns a number of such a type as text: "2024-01-05", "2024-01-05 12:30:00.5", with a "Z" where
// the type has a time zone, "12:30:00". Nothing of a duration.
[[nodiscard]] std::optional<std::string> text_of_time(std::int64_t number,
                                                      std::string_view type_name);

// A number of such a type in days since 1970, which is 0 of a time of day, and what follows.
struct TimeFields {
  std::int64_t day = 0;
  std::int64_t second_of_day = 0;
  std::int64_t nanosecond = 0;
};
[[nodiscard]] TimeFields fields_of_time(std::int64_t number, std::string_view type_name);

}  // namespace troika
