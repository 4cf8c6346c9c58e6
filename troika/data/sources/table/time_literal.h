// Internal: dates and times of a recipe, as the whole numbers that files store.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace troika {

// Returns "2024-01-05", "2024-01-05 12:30:00.5" or, of a time of day, "12:30" in the unit of a
// type: "date32[day]", "timestamp[us, tz=UTC]", "time32[s]". Times are UTC. Nothing where it is
// none of those, or no whole number of that unit.
[[nodiscard]] std::optional<std::int64_t> time_in_unit(std::string_view text,
                                                       std::string_view type_name);

}  // namespace troika
