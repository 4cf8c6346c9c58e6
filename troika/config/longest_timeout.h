// Internal: of a recipe's keys, of SessionOptions and of flags alike.
#pragma once

namespace troika {

// Some 115 days, in seconds; the shortest is anything above 0.
inline constexpr double kLongestTimeout = 1e7;

}  // namespace troika
