// Internal: the units of dates and times, which a file stores as whole numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace troika {

// Says how a whole number of one unit becomes one of another: times `times`, then divided by `by`
// and rounded down. One of the two is 1.
struct UnitChange {
  std::int64_t times = 1, by = 1;

  [[nodiscard]] bool is_needed() const { return times != by; }
  // Returns nothing where the result does not fit.
  [[nodiscard]] std::optional<std::int64_t> operator()(std::int64_t number) const;
  bool operator==(const UnitChange&) const = default;
};

// Returns the change between two of Arrow's types, such as "timestamp[us]" and "date32[day]".
// Nothing where they mean different things: a duration is no time of day, and a timestamp with a
// time zone is none without.
[[nodiscard]] std::optional<UnitChange> unit_change(std::string_view from, std::string_view to);

}  // namespace troika
