#include <troika/data/sources/table/time_literal.h>
#include <troika/data/sources/table/time_part.h>

#include <algorithm>
#include <array>
#include <chrono>

namespace troika {
namespace {

constexpr auto kPartNames = std::to_array<std::string_view>(
    {"year", "month", "day", "weekday", "day_of_year", "hour", "minute", "second"});

bool is_of_day(TimePart part) {
  return part == TimePart::kHour || part == TimePart::kMinute || part == TimePart::kSecond;
}

std::int64_t part_of_date(std::chrono::sys_days day, TimePart part) {
  using namespace std::chrono;
  const year_month_day date(day);
  switch (part) {
    case TimePart::kYear:
      return static_cast<int>(date.year());
    case TimePart::kMonth:
      return static_cast<unsigned>(date.month());
    case TimePart::kDay:
      return static_cast<unsigned>(date.day());
    case TimePart::kWeekday:
      return weekday(day).iso_encoding() - 1;
    default:
      return (day - sys_days(date.year() / January / 1)).count() + 1;
  }
}

}  // namespace

std::span<const std::string_view> names_of_parts() {
  return kPartNames;
}

bool has_part(std::string_view type_name, TimePart part) {
  if (type_name.starts_with("timestamp")) return true;
  if (type_name.starts_with("date")) return !is_of_day(part);
  return type_name.starts_with("time") && is_of_day(part);
}

std::int64_t part_of_time(std::int64_t number, std::string_view type_name, TimePart part) {
  const TimeFields time = fields_of_time(number, type_name);
  if (part == TimePart::kHour) return time.second_of_day / 3600;
  if (part == TimePart::kMinute) return time.second_of_day / 60 % 60;
  if (part == TimePart::kSecond) return time.second_of_day % 60;
  return part_of_date(std::chrono::sys_days(std::chrono::days(time.day)), part);
}

std::optional<std::string_view> whole_of_part(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return std::nullopt;
  const bool is_part = std::ranges::find(kPartNames, name.substr(dot + 1)) != kPartNames.end();
  return is_part ? std::optional(name.substr(0, dot)) : std::nullopt;
}

}  // namespace troika
