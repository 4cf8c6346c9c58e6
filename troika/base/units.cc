#include <troika/base/units.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>

namespace troika {
namespace {

using std::string_view_literals::operator""sv;

// `value` in the largest unit that keeps it at least one, after rounding to one digit.
std::string scaled(double value, double step, std::span<const std::string_view> units) {
  if (!std::isfinite(value)) return "?";
  std::size_t unit = 0;
  bool whole = value == std::floor(value);
  // A fraction that is less than 0.05 below the step already rounds to it.
  while (unit + 1 < units.size() && std::abs(value) >= step - (whole ? 0 : 0.05)) {
    value /= step;
    ++unit;
    whole = false;
  }
  std::string text = format_fixed(value, whole ? 0 : 1);
  if (!units[unit].empty()) text.append(" ").append(units[unit]);
  return text;
}

std::string two_digits(std::int64_t value) {
  return (value < 10 ? "0" : "") + std::to_string(value);
}

// "BIG name SMALL name" of a whole number of small units.
std::string two_parts(std::int64_t small, std::int64_t per_big, std::string_view big_name,
                      std::string_view small_name) {
  return std::to_string(small / per_big)
      .append(big_name)
      .append(two_digits(small % per_big))
      .append(small_name);
}

}  // namespace

std::string format_fixed(double value, int digits) {
  if (!std::isfinite(value)) return "?";
  std::array<char, 512> text;  // 309 digits before the point at most
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                 std::chars_format::fixed, digits);
  return end.ec == std::errc() ? std::string(text.data(), end.ptr) : "?";
}

std::string format_bytes(std::uint64_t bytes) {
  static constexpr std::array kUnits{"B"sv, "KiB"sv, "MiB"sv, "GiB"sv, "TiB"sv, "PiB"sv, "EiB"sv};
  return scaled(static_cast<double>(bytes), 1024, kUnits);
}

std::string format_count(double count) {
  static constexpr std::array kUnits{""sv, "k"sv, "M"sv, "G"sv, "T"sv, "P"sv, "E"sv};
  return scaled(count, 1000, kUnits);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 0) return "-" + format_duration(-seconds);
  if (seconds < 999.5e-9) return format_fixed(seconds * 1e9, 0) + " ns";
  if (seconds < 999.5e-6) return format_fixed(seconds * 1e6, 0) + " us";
  if (seconds < 9.95e-3) return format_fixed(seconds * 1e3, 1) + " ms";
  if (seconds < 0.9995) return format_fixed(seconds * 1e3, 0) + " ms";
  if (seconds < 59.95) return format_fixed(seconds, 1) + " s";
  constexpr std::int64_t kHour = 3600, kDay = 24 * kHour;
  if (seconds > 1e15) return format_fixed(seconds / kDay, 0) + " d";
  const std::int64_t whole = std::llround(seconds);
  if (whole < kHour) return two_parts(whole, 60, " min ", " s");
  const std::int64_t minutes = std::llround(seconds / 60);
  if (minutes * 60 < kDay) return two_parts(minutes, 60, " h ", " min");
  return two_parts(std::llround(seconds / kHour), 24, " d ", " h");
}

std::string format_elapsed(std::int64_t since, std::int64_t now) {
  return format_duration(
      std::max(0.0, (static_cast<double>(now) - static_cast<double>(since)) / 1e9));
}

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  std::int64_t factor = 1;
  constexpr std::string_view kUnits = "KMG";
  if (!text.empty()) {
    const std::size_t unit = kUnits.find(text.back());
    if (unit != std::string_view::npos) {
      factor = std::int64_t{1} << (10 * (unit + 1));
      text.remove_suffix(1);
    }
  }
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (!is_number || number < 1 || number > kMost / factor) return std::nullopt;
  return number * factor;
}

std::string format_rate(double per_second, std::string_view unit) {
  return format_count(per_second).append(" ").append(unit).append("/s");
}

std::string format_bandwidth(double bytes_per_second) {
  static constexpr std::array kUnits{"B/s"sv, "kB/s"sv, "MB/s"sv, "GB/s"sv, "TB/s"sv};
  return scaled(bytes_per_second, 1000, kUnits);
}

}  // namespace troika
