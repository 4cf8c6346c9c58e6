#include <fnmatch.h>
#include <troika/data/sources/table/time_literal.h>
#include <troika/data/sources/table/time_text.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

namespace troika {
namespace {

constexpr std::int64_t kMicroseconds = 1'000'000;

// Returns whether a format has one of these conversions, as 'Y' in "%d.%m.%Y".
bool has_conversion(std::string_view format, std::string_view letters) {
  for (std::size_t i = 0; i + 1 < format.size(); ++i) {
    if (format[i] != '%') continue;
    if (format[i + 1] == 'E' || format[i + 1] == 'O') ++i;  // modifiers
    if (i + 1 < format.size() && letters.find(format[i + 1]) != std::string_view::npos) return true;
    ++i;
  }
  return false;
}

// The seconds since 1970 of a calendar's fields; nothing where there is no such day.
std::optional<std::int64_t> seconds_of(const std::tm& time) {
  using namespace std::chrono;
  const year_month_day date{year(time.tm_year + 1900),
                            month(static_cast<unsigned>(time.tm_mon + 1)),
                            day(static_cast<unsigned>(time.tm_mday))};
  if (!date.ok()) return std::nullopt;
  const std::int64_t days = sys_days(date).time_since_epoch().count();
  return days * 86'400 + time.tm_hour * 3600 + time.tm_min * 60 + time.tm_sec - time.tm_gmtoff;
}

}  // namespace

TimeText::TimeText(std::string format)
    : format_(std::move(format)),
      has_time_(format_ == kIsoTime || has_conversion(format_, "HIklMSTRrXpc")) {}

std::string TimeText::refusal_of(std::string_view format) {
  if (format == kIsoTime || has_conversion(format, "YyDFcxG")) return "";
  return "has no year: \"iso\" reads 2024-01-05, and \"%d.%m.%Y\" reads 05.01.2024";
}

const char* TimeText::type_name() const {
  return has_time_ ? "timestamp[us]" : "date32[day]";
}

std::optional<std::int64_t> TimeText::operator()(std::string_view text) const {
  if (format_ == kIsoTime) return time_in_unit(text, type_name());
  std::tm time = {};
  time.tm_mday = 1;
  const std::string copy(text);  // which ends with 0
  const char* const end = ::strptime(copy.c_str(), format_.c_str(), &time);
  if (end != copy.c_str() + copy.size()) return std::nullopt;
  const std::optional<std::int64_t> seconds = seconds_of(time);
  if (!seconds) return std::nullopt;
  return has_time_ ? *seconds * kMicroseconds : *seconds / 86'400;
}

const TimeText* TimeColumns::find(const std::string& column) const {
  const auto text_of = [](const TimeColumn& each) { return each.text ? &*each.text : nullptr; };
  for (const TimeColumn& each : columns) {
    if (each.column == column) return text_of(each);
  }
  for (const TimeColumn& each : columns) {
    if (::fnmatch(each.column.c_str(), column.c_str(), 0) == 0) return text_of(each);
  }
  return nullptr;
}

TimesOfTexts times_of(const arrow_plugin::Values& values, const TimeText& text) {
  TimesOfTexts times;
  for (std::int64_t i = 0; i < values.rows; ++i) {
    const auto row = static_cast<std::size_t>(i);
    const auto begin = static_cast<std::size_t>(values.offsets[row]);
    const std::string_view own =
        values.text.substr(begin, static_cast<std::size_t>(values.offsets[row + 1]) - begin);
    const bool has_text = (values.there.empty() || values.there[row] != 0) && !own.empty();
    const std::optional<std::int64_t> number = has_text ? text(own) : std::nullopt;
    times.integers.push_back(number.value_or(0));
    times.there.push_back(number ? 1 : 0);
    if (has_text && !number && !times.unreadable) times.unreadable = i;
  }
  return times;
}

}  // namespace troika
