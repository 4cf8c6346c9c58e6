#include <troika/data/sources/table/time_unit.h>

#include <algorithm>
#include <array>
#include <utility>

namespace troika {
namespace {

// What values of a type count, and how many nanoseconds one is.
struct TimeType {
  enum class Kind { kMoment, kMomentOfZone, kTimeOfDay, kDuration };
  Kind kind;
  std::int64_t nanoseconds;
};

std::optional<std::int64_t> nanoseconds_of(std::string_view unit) {
  using Unit = std::pair<std::string_view, std::int64_t>;
  constexpr auto kUnits = std::to_array<Unit>({{"ns", 1},
                                               {"us", 1'000},
                                               {"ms", 1'000'000},
                                               {"s", 1'000'000'000},
                                               {"day", 86'400'000'000'000}});
  const auto* const found = std::ranges::find(kUnits, unit, &Unit::first);
  return found == kUnits.end() ? std::nullopt : std::optional(found->second);
}

// Reads "timestamp[us, tz=UTC]".
std::optional<TimeType> time_type_of(std::string_view name) {
  const std::size_t open = name.find('['), end = name.find_first_of(",]");
  if (open == std::string_view::npos || end == std::string_view::npos) return std::nullopt;
  const auto nanoseconds = nanoseconds_of(name.substr(open + 1, end - open - 1));
  if (!nanoseconds) return std::nullopt;
  using Kind = TimeType::Kind;
  if (name.starts_with("duration")) return TimeType{Kind::kDuration, *nanoseconds};
  if (name.starts_with("date")) return TimeType{Kind::kMoment, *nanoseconds};
  if (!name.starts_with("timestamp")) return TimeType{Kind::kTimeOfDay, *nanoseconds};
  return TimeType{name[end] == ',' ? Kind::kMomentOfZone : Kind::kMoment, *nanoseconds};
}

}  // namespace

std::optional<std::int64_t> UnitChange::operator()(std::int64_t number) const {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(number, times, &result)) return std::nullopt;
  const std::int64_t rest = result % by;
  return result / by - (rest < 0 ? 1 : 0);
}

std::optional<UnitChange> unit_change(std::string_view from, std::string_view to) {
  const auto old_type = time_type_of(from), new_type = time_type_of(to);
  if (!old_type || !new_type || old_type->kind != new_type->kind) return std::nullopt;
  if (old_type->nanoseconds >= new_type->nanoseconds) {
    return UnitChange{.times = old_type->nanoseconds / new_type->nanoseconds};
  }
  return UnitChange{.by = new_type->nanoseconds / old_type->nanoseconds};
}

}  // namespace troika
