#include <troika/data/sources/table/time_literal.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <limits>

namespace troika {
namespace {

constexpr std::int64_t kSecondsOfDay = 86'400, kNanoseconds = 1'000'000'000;

// A text that is taken apart from its front.
class Digits {
 public:
  explicit Digits(std::string_view text) : text_(text) {}

  [[nodiscard]] bool at_end() const { return text_.empty(); }
  bool skip(char c) {
    const bool is_next = text_.starts_with(c);
    if (is_next) text_.remove_prefix(1);
    return is_next;
  }
  // Reads a number of so many digits.
  std::optional<int> number(std::size_t digits) {
    int value = 0;
    if (text_.size() < digits) return std::nullopt;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + digits, value);
    if (error != std::errc() || end != text_.data() + digits || value < 0) return std::nullopt;
    text_.remove_prefix(digits);
    return value;
  }
  // Reads up to nine digits as a fraction of a second, in nanoseconds.
  std::optional<std::int64_t> fraction() {
    std::int64_t value = 0, unit = kNanoseconds;
    while (!text_.empty() && text_[0] >= '0' && text_[0] <= '9' && unit > 1) {
      unit /= 10;
      value += (text_[0] - '0') * unit;
      text_.remove_prefix(1);
    }
    return unit == kNanoseconds ? std::nullopt : std::optional(value);
  }

 private:
  std::string_view text_;
};

struct Time {
  std::int64_t seconds = 0, nanoseconds = 0;
};

// "2024-01-05", in days since 1970.
std::optional<std::int64_t> read_day(Digits& text) {
  using namespace std::chrono;
  const auto year = text.number(4);
  if (!year || !text.skip('-')) return std::nullopt;
  const auto month = text.number(2);
  if (!month || !text.skip('-')) return std::nullopt;
  const auto day = text.number(2);
  if (!day) return std::nullopt;
  const year_month_day date{std::chrono::year(*year),
                            std::chrono::month(static_cast<unsigned>(*month)),
                            std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok()) return std::nullopt;
  return sys_days(date).time_since_epoch().count();
}

// "12:30", "12:30:01.25".
std::optional<Time> read_time_of_day(Digits& text) {
  const auto hour = text.number(2);
  if (!hour || *hour > 23 || !text.skip(':')) return std::nullopt;
  const auto minute = text.number(2);
  if (!minute || *minute > 59) return std::nullopt;
  Time time{*hour * 3600 + *minute * 60, 0};
  if (!text.skip(':')) return time;
  const auto second = text.number(2);
  if (!second || *second > 59) return std::nullopt;
  time.seconds += *second;
  if (!text.skip('.')) return time;
  const auto fraction = text.fraction();
  if (!fraction) return std::nullopt;
  time.nanoseconds = *fraction;
  return time;
}

// "Z", "+01:00", "-0530" or "+01", in seconds; 0 where there is none.
std::optional<std::int64_t> read_offset(Digits& text) {
  if (text.skip('Z')) return 0;
  const bool is_east = text.skip('+');
  if (!is_east && !text.skip('-')) return 0;
  const auto hours = text.number(2);
  if (!hours || *hours > 23) return std::nullopt;
  text.skip(':');
  const auto minutes = text.at_end() ? std::optional(0) : text.number(2);
  if (!minutes || *minutes > 59) return std::nullopt;
  return (is_east ? 1 : -1) * (*hours * 3600 + *minutes * 60);
}

std::optional<Time> read_time(std::string_view text, bool has_day) {
  Digits digits(text);
  Time time;
  if (has_day) {
    const auto day = read_day(digits);
    if (!day) return std::nullopt;
    time.seconds = *day * kSecondsOfDay;
    if (digits.at_end()) return time;
    if (!digits.skip(' ') && !digits.skip('T')) return std::nullopt;
  }
  const auto of_day = read_time_of_day(digits);
  if (!of_day) return std::nullopt;
  const auto offset = read_offset(digits);
  if (!offset || !digits.at_end() || (!has_day && *offset != 0)) return std::nullopt;
  return Time{time.seconds + of_day->seconds - *offset, of_day->nanoseconds};
}

// Ticks of a unit in a second.
std::int64_t ticks_of(std::string_view type_name) {
  if (type_name.find("[ns") != std::string_view::npos) return kNanoseconds;
  if (type_name.find("[us") != std::string_view::npos) return 1'000'000;
  return type_name.find("[ms") != std::string_view::npos ? 1'000 : 1;
}

std::string date_text(std::int64_t day) {
  using namespace std::chrono;
  const year_month_day date{sys_days(days(day))};
  char text[32];
  std::snprintf(text, sizeof text, "%04d-%02u-%02u", static_cast<int>(date.year()),
                static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
  return text;
}

std::string time_of_day_text(const TimeFields& time) {
  const auto second = static_cast<int>(time.second_of_day);
  char text[48];
  std::snprintf(text, sizeof text, "%02d:%02d:%02d", second / 3600, second / 60 % 60, second % 60);
  std::string result = text;
  if (time.nanosecond == 0) return result;
  std::snprintf(text, sizeof text, ".%09d", static_cast<int>(time.nanosecond));
  result += text;
  result.erase(result.find_last_not_of('0') + 1);
  return result;
}

}  // namespace

std::optional<std::int64_t> time_in_unit(std::string_view text, std::string_view type_name) {
  const bool is_date = type_name.starts_with("date");
  if (!is_date && !type_name.starts_with("time")) return std::nullopt;  // as a duration
  const bool has_day = is_date || type_name.starts_with("timestamp");
  const std::optional<Time> time = read_time(text, has_day);
  if (!time) return std::nullopt;
  if (is_date && (time->seconds % kSecondsOfDay != 0 || time->nanoseconds != 0))
    return std::nullopt;
  if (type_name.starts_with("date32")) return time->seconds / kSecondsOfDay;
  const std::int64_t ticks = ticks_of(type_name), length = kNanoseconds / ticks;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (time->nanoseconds % length != 0) return std::nullopt;
  if (time->seconds > kMost / ticks - 1 || time->seconds < -(kMost / ticks)) return std::nullopt;
  return time->seconds * ticks + time->nanoseconds / length;
}

TimeFields fields_of_time(std::int64_t number, std::string_view type_name) {
  if (type_name.starts_with("date32")) return {.day = number};
  const std::int64_t ticks = ticks_of(type_name);
  const std::int64_t seconds = number / ticks - (number % ticks < 0 ? 1 : 0);
  const std::int64_t day = seconds / kSecondsOfDay - (seconds % kSecondsOfDay < 0 ? 1 : 0);
  return {.day = day,
          .second_of_day = seconds - day * kSecondsOfDay,
          .nanosecond = (number - seconds * ticks) * (kNanoseconds / ticks)};
}

std::optional<std::string> text_of_time(std::int64_t number, std::string_view type_name) {
  const bool is_date = type_name.starts_with("date");
  if (!is_date && !type_name.starts_with("time")) return std::nullopt;  // as a duration
  const TimeFields time = fields_of_time(number, type_name);
  if (is_date) return date_text(time.day);
  if (!type_name.starts_with("timestamp")) return time_of_day_text(time);
  const bool has_zone = type_name.find(',') != std::string_view::npos;
  return date_text(time.day) + " " + time_of_day_text(time) + (has_zone ? "Z" : "");
}

}  // namespace troika
