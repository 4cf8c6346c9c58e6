// Numbers for people: sizes, counts, durations and rates in a handful of characters, the same in
// every locale. Values that are not finite print as "?".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

// Formats in powers of 1024: "512 B", "1.2 GiB".
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);

// Reads "4096", "4K", "64M" or "80G" in powers of 1024; nothing if that is no size from 1 byte to
// 1 TiB.
[[nodiscard]] std::optional<std::int64_t> parse_bytes(std::string_view text);

// Formats in powers of 1000: "950", "12.3 k", "4.5 M". Below a thousand, a fraction keeps one
// digit: "0.5".
[[nodiscard]] std::string format_count(double count);

// Returns "850 ns", "45 us", "4.5 ms", "12.3 s", "3 min 05 s", "1 h 02 min", "2 d 03 h".
[[nodiscard]] std::string format_duration(double seconds);

// Formats the time from `since` to `now`, both in ns. Clocks of two hosts differ: a time in the
// future counts as now.
[[nodiscard]] std::string format_elapsed(std::int64_t since, std::int64_t now);

// Returns "12.3 k tokens/s" for a unit "tokens".
[[nodiscard]] std::string format_rate(double per_second, std::string_view unit);

// Formats in powers of 1000, as networks and memory are rated: "1.2 GB/s".
[[nodiscard]] std::string format_bandwidth(double bytes_per_second);

// Returns `value` with a fixed number of digits after the point.
[[nodiscard]] std::string format_fixed(double value, int digits);

}  // namespace troika
