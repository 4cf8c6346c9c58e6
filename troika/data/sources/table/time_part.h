// Internal: parts of dates and times as columns of their own: "day.weekday" is the weekday of the
// column "day".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace troika {

enum class TimePart { kYear, kMonth, kDay, kWeekday, kDayOfYear, kHour, kMinute, kSecond };

// Returns the names of all parts, in their order, and those that values of a type have: a date has
// no hour, a time of day no year, and a duration none.
[[nodiscard]] std::span<const std::string_view> names_of_parts();
[[nodiscard]] bool has_part(std::string_view type_name, TimePart part);

// Returns a part of a number of "date32[day]", "timestamp[us]" or "time64[us]". Months, days and
// days of the year count from 1, weekdays from 0, which is Monday. Times are UTC.
[[nodiscard]] std::int64_t part_of_time(std::int64_t number, std::string_view type_name,
                                        TimePart part);

// Returns the name of the column that a name is a part of; nothing where it is none.
[[nodiscard]] std::optional<std::string_view> whole_of_part(std::string_view name);

}  // namespace troika
